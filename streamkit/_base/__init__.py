"""What any folder may use: the record of a queue, the words of errors, classes, tables."""
