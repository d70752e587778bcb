"""The line of commit objects: the only truth about a branch, who may extend it, and how."""
