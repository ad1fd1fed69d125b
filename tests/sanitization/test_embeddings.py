"""Embeddings from every format, and what is wrong with a bad one in one sentence."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from support.word_pieces import PIECES, model_folder
from tacit.errors import DataError, TacitError
from tacit.sanitization import Recipe, Sanitizer, choose_sensitive, open_embeddings
from tacit.sanitization.embeddings import Embedding

VECTORS = np.array([[0.0, 1.0], [2.0, 3.0], [4.5, -5.0]], dtype=np.float32)
LINES = "the 0.0 1.0\nfilm 2.0 3.0\ngood 4.5 -5.0\n"


def npz(path: Path, words: object, vectors: object) -> Path:
    np.savez(path, words=np.asarray(words), vectors=np.asarray(vectors))
    return path


@pytest.mark.parametrize(
    ("name", "text"),
    [("glove.txt", LINES), ("w2v.vec", "3 2\n" + LINES), ("ft.vec", LINES.replace("\n", " \n"))],
)
@pytest.mark.parametrize("packed", [False, True])
def test_text_formats(tmp_path: Path, name: str, text: str, packed: bool) -> None:
    path = tmp_path / (name + (".gz" if packed else ""))
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    found = open_embeddings(path)
    assert found.words == ("the", "film", "good")
    np.testing.assert_array_equal(found.vectors, VECTORS)


def test_a_word_with_blanks_inside(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("the 0 1\n. . . 2 3\n")
    assert open_embeddings(tmp_path / "a.txt").words == ("the", ". . .")


def test_npz(tmp_path: Path) -> None:
    found = open_embeddings(npz(tmp_path / "a.npz", ["a", "b", "c"], VECTORS.astype(np.float16)))
    np.testing.assert_array_equal(found.vectors, VECTORS)
    assert found.digest == open_embeddings(tmp_path / "a.npz").digest


def test_repeated_words_and_twin_vectors_are_counted(tmp_path: Path) -> None:
    found = open_embeddings(npz(tmp_path / "a.npz", ["a", "b", "a"], VECTORS))
    assert (found.words, found.repeated) == (("a", "b"), 1)
    found = open_embeddings(npz(tmp_path / "b.npz", ["a", "b", "c"], VECTORS[[0, 1, 0]]))
    assert found.twins == 1


BAD = [
    ("nan.npz", lambda p: npz(p, ["a", "b"], [[0.0, np.nan], [1.0, 2.0]]), "word 1 .*NaN"),
    ("short.npz", lambda p: npz(p, ["a", "b"], [[0.0, 1.0]]), "2 words and 1 vectors"),
    ("empty.npz", lambda p: npz(p, np.array([], "U1"), np.zeros((0, 2))), "0 words"),
    ("one.npz", lambda p: npz(p, ["a"], [[0.0, 1.0]]), "1 words"),
    ("kind.npz", lambda p: npz(p, [1, 2], [[0.0], [1.0]]), "must be text"),
    ("no.npz", lambda p: p.write_bytes(b"hello"), "not a file of embeddings"),
    ("half.npz", lambda p: np.savez(p, words=np.array(["a"])), "not a file of embeddings"),
    ("ragged.txt", lambda p: p.write_text("a 1 2\nb 3\n"), "line 2"),
    ("word.txt", lambda p: p.write_text("a 1 2\nb 3 x\n"), "line 2"),
    ("long.txt", lambda p: p.write_text("a 1 2\nb 3 x 4 5\nc 1 x\n"), "line 3"),
    ("inner.txt", lambda p: p.write_text("a 1 2 3\nb 3 x 4\n"), "not a number"),
    ("nan.txt", lambda p: p.write_text("a 1 2\nb nan 4\n"), "word 2 .*NaN"),
    ("empty.txt", lambda p: p.write_text(""), "no words"),
    ("bytes.txt", lambda p: p.write_bytes(b"\xff\xfe 1 2\n"), "line 1"),
    ("what.bin", lambda p: p.write_bytes(b"x"), "does not tell the format"),
]


@pytest.mark.parametrize(("name", "make", "says"), BAD, ids=[b[0] for b in BAD])
def test_bad_files(tmp_path: Path, name: str, make, says: str) -> None:
    make(tmp_path / name)
    with pytest.raises(TacitError, match=says) as error:
        open_embeddings(tmp_path / name)
    assert "\n" not in str(error.value)


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="neither a file"):
        open_embeddings(tmp_path / "nothing")


# --- a model's input embeddings -------------------------------------------------------------


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
def test_a_models_pieces(tmp_path: Path, kind: str) -> None:
    pytest.importorskip("tokenizers")
    found = open_embeddings(model_folder(tmp_path / "m", kind))
    assert found.words == ("good", "film", "##s", "anna", ",", "un", "##seen")
    wanted = np.random.default_rng(0).standard_normal((len(PIECES), 4))[6:]
    np.testing.assert_allclose(found.vectors, wanted, rtol=1e-2, atol=1e-2)
    work = Sanitizer(found, Recipe("santext", 1e6, unknown="keep"), seed=1)
    # At a huge epsilon the text comes back, put together again, in the model's case.
    assert work(["r"], ["Good films , unseen zebra Anna"])[0] == ["good films , unseen zebra anna"]
    sensitive = choose_sensitive(found, share=0.5)
    assert len(sensitive) == 4
    smaller = found.only(["good", "film", "##s"], "a list")
    assert Sanitizer(smaller, Recipe("santext", 1e6, unknown="drop"), seed=1)(
        ["r"], ["good films anna"]
    )[0] == ["good films"]


def test_a_broken_model_folder(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    folder = model_folder(tmp_path / "m")
    (folder / "model.safetensors").write_bytes(b"\x05\0\0\0\0\0\0\0hello")
    with pytest.raises(DataError, match="safetensors"):
        open_embeddings(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(DataError, match=r"no model\.safetensors"):
        open_embeddings(folder)


# --- sensitive words ------------------------------------------------------------------------


def ranked() -> Embedding:
    words = ("the", "a", "film", "good", "anna", "rome", "zoe", "paris", "bob", "york")
    rng = np.random.default_rng(0)
    return Embedding("ranked", words, rng.standard_normal((10, 3)).astype(np.float32))


def chosen(**given: object) -> set[str]:
    embedding = ranked()
    mask = choose_sensitive(embedding, **given).mask  # type: ignore[arg-type]
    return {w for w, s in zip(embedding.words, mask, strict=True) if s}


def test_the_share_is_of_the_rarest(tmp_path: Path) -> None:
    assert chosen(share=0.3) == {"paris", "bob", "york"}
    assert chosen() == set(ranked().words) - {"the"}
    counts = tmp_path / "counts.txt"
    counts.write_text("bob\t100\nthe\t50\nanna\t70\n")
    # Words that the list lacks are the rarest.
    assert chosen(share=0.7, frequencies=counts) == set(ranked().words) - {"the", "bob", "anna"}


def test_a_list_and_its_union_with_a_share(tmp_path: Path) -> None:
    names = tmp_path / "names.txt"
    names.write_text("# people\nAnna\nZoe\nBob York\nNobody\n\n")
    assert chosen(words=names) == {"anna", "zoe", "bob", "york"}
    assert chosen(words=names, share=0.3) == {"anna", "zoe", "paris", "bob", "york"}


def test_what_detectors_find_in_public_text(tmp_path: Path) -> None:
    text = tmp_path / "public.txt"
    text.write_text("We went from Paris to Rome.\n")
    assert chosen(found_in=text, using="lists") == {"paris", "rome"}


@pytest.mark.parametrize(
    ("content", "says"),
    [("anna\nbob\nanna\n", "lines 1 and 3"), ("", "no words"), ("nobody\nnowhere\n", "0 words")],
)
def test_bad_lists(tmp_path: Path, content: str, says: str) -> None:
    (tmp_path / "names.txt").write_text(content)
    with pytest.raises(DataError, match=says):
        chosen(words=tmp_path / "names.txt")
