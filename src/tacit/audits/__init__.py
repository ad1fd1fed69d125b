"""Audits: lower bounds on epsilon from what an attacker achieved, beside the certificate."""
