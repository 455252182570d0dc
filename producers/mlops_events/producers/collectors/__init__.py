"""What a node tells of itself: the machine, its GPUs, the memory that torch holds.

Nothing here is imported before somebody asks for it; psutil and pynvml not before their thread runs.
"""
