"""Build Horovod against the frameworks of one Python environment.

Standard library only, so that it runs before anything else is installed.
"""
