"""In the place of mamba-ssm's extension, which is of Mamba 1: nothing that is traced calls it."""
