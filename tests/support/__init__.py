"""What tests share: small corpora, small runs, planted bugs, servers and people."""
