"""How fast GEMMs are in bf16 and fp8, and the most that fp8 can gain on a complete step."""
