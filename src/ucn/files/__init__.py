"""Safe reading and atomic writing, a cache of recent items, and 'did you mean'; import the modules."""
