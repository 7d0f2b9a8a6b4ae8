"""gpgen: reads proto/spec and writes both sides of gpupool into the build folder."""
