"""unit/: one process; parallel/: under horovodrun and mpirun."""
