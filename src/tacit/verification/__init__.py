"""Check what was promised, offline: certificates, ledgers, files, signatures."""
