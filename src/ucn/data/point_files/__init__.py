"""Points files of many formats, read into one value and written from it: `files` has the two doors."""
