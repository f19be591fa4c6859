"""What tests on a CUDA device share; most of it works on the emulated driver too."""
