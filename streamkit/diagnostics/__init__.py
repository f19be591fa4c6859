"""What only looks: recording, audits, races, pictures, and the doctor."""
