"""The part that only looks: recording, audits, races, pictures, and the doctor."""
