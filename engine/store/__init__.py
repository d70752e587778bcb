"""Object storage as the line needs it: a directory or an S3 bucket."""
