"""Run argap's work: devices, processes, threads, progress and interrupts; nothing of its subject."""
