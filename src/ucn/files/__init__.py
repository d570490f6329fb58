"""Safe reading, atomic writing, temporary files, a cache, and 'did you mean'; import the modules."""
