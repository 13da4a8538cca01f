"""Reports of runs: pictures, and who learnt what."""
