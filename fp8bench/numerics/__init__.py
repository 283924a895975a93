"""What number formats can represent, the errors that they add, and the speed of their GEMMs."""
