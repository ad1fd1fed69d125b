"""Who wrote what: a corpus, read, written and described."""

from tacit.corpus.corpus import COLUMNS, SCHEMA, SPAN, Corpus, Record, Span, record_from_row

__all__ = ["COLUMNS", "SCHEMA", "SPAN", "Corpus", "Record", "Span", "record_from_row"]
