"""How spans leave a process, and how their context gets in and out of calls."""
