"""The four phases of a commit: announced, staged, put into the line, finished behind the answer."""
