"""What a file is by its first bytes, where it is no text; which folders are bertie's own."""

from pathlib import Path

from bertie.data.blocks import UTF16
from bertie.errors import UserError

PACKED, BINARY = "unpack it", "leave it out"
SIGNS = {
    b"PK\x03\x04": ("a ZIP archive, or a document of an office program", PACKED),
    b"7z\xbc\xaf\x27\x1c": ("a 7z archive", PACKED),
    b"Rar!\x1a\x07": ("a RAR archive", PACKED),
    b"\x04\x22\x4d\x18": ("packed with lz4", PACKED),
    b"\x1f\x8b\x08": ("packed with gzip", "name it .gz"),
    b"\xfd7zXZ\x00": ("packed with xz", "name it .xz"),
    b"\x28\xb5\x2f\xfd": ("packed with zstd", "name it .zst"),
    b"BZh91AY&SY": ("packed with bzip2", "name it .bz2"),
    b"PAR1\x15": ("a Parquet file", "name it .parquet"),
    b"ARROW1\x00": ("an Arrow file", "write it as .parquet"),
    b"%PDF-": ("a PDF file", "take its text out (pdftotext)"),
    b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1": ("a document of an office program", "take its text out"),
    b"\x89PNG\r\n": ("an image", BINARY),
    b"\xff\xd8\xff": ("an image", BINARY),
    b"GIF87a": ("an image", BINARY),
    b"GIF89a": ("an image", BINARY),
    b"OggS\x00": ("a sound or a film", BINARY),
    b"\x7fELF": ("a program", BINARY),
    b"SQLite format 3\x00": ("a database", BINARY),
}
TAR, TAR_AT = b"ustar", 257
MOST_ZEROS = 0.01  # of the bytes of a text; that of a page without any other letters has half
FEW_ZEROS = 8  # are no sign

# A folder with all of these was made by bertie, or is a model.
OWN = (
    ("manifest.json", "ids.bin"),
    ("manifest.json", "ids.npy"),
    ("plan.json", "tokenizer"),
    ("run.json", "metrics.jsonl"),
    ("run.json", "checkpoints"),
    ("run.json", "model"),
    ("run.json", "runs"),
    ("tokenizer_config.json",),
    ("bert_config.json",),
    ("config.json", "vocab.txt"),
    ("config.json", "tokenizer.json"),
    ("config.json", "model.safetensors"),
    ("config.json", "model.int8.safetensors"),
    ("config.json", "pytorch_model.bin"),
    ("head.json", "head.safetensors"),
)


def check_is_text(path: Path, head: bytes) -> None:
    """Refuses a file that begins as no text does."""
    found = next((said for sign, said in SIGNS.items() if head.startswith(sign)), None)
    if found is None and head.startswith(TAR, TAR_AT):
        found = "a tar archive", PACKED
    if found is not None:
        raise UserError(f"{path} is not text but {found[0]}; {found[1]}")
    zeros = head.count(0)
    if zeros > max(FEW_ZEROS, MOST_ZEROS * len(head)) and not head.startswith(UTF16):
        raise UserError(
            f"{path} is not text: {zeros:,} of its first {len(head):,} bytes are zero; leave it "
            "out (if it is UTF-16 without a mark: iconv -f utf-16le -t utf-8 OLD > NEW)"
        )


def is_own(folder: Path) -> bool:
    """Whether a folder is a store, a draft of one, a run, a tokenizer or a model."""
    return any(all((folder / name).exists() for name in names) for names in OWN)
