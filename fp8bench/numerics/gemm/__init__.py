"""How fast GEMMs are in bf16 and fp8, and how much fp8 can give a whole step at most."""
