"""The evaluation `objects`: images of one class, with masks of the object and no labelled points."""
