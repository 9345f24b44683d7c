"""Where payloads rest, each under its SHA-256.

`ArtifactStore` is what programs rely on. `LocalStore` keeps artifacts in a folder, `BucketStore` in an S3-compatible
bucket, and `open_store` makes the one that a program's settings name. What is stored never changes, so that storing
it again is no work, and whoever reaches the same store needs only the digest.
"""

from hanse.artifacts.local import LocalStore
from hanse.artifacts.location import ArtifactSettings, S3Location, open_store
from hanse.artifacts.store import LEFTOVER_AGE, Artifact, ArtifactStore, Stored

__all__ = [
    "LEFTOVER_AGE",
    "Artifact",
    "ArtifactSettings",
    "ArtifactStore",
    "LocalStore",
    "S3Location",
    "Stored",
    "open_store",
]
