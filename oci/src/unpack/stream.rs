//! The stream of a layer: from the blob through its digest, decompression and limits to the archive.
//!
//! Nothing is stored: each reader passes bytes on to the next one and keeps only counts and hashes.

use std::cell::Cell;
use std::io::{self, BufRead, BufReader, Chain, Cursor, Read};
use std::rc::Rc;

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

use super::{Limits, UnpackError};
use instar_values::digest::{Digest, Hasher};

/// Buffer size of decompressors, in bytes.
const BUFFER: usize = 64 * 1024;
/// The largest zstd window: `zstd -19` and the usual packing of images need 8 MiB. This is half of the memory that unpacking a layer may
/// take.
const LARGEST_WINDOW: u64 = 16 * 1024 * 1024;

/// A blob that is being received: counted and hashed, never longer than announced.
pub(super) struct Blob<R> {
    inner: R,
    hasher: Hasher,
    size: u64,
    read: Rc<Cell<u64>>,
    failure: Option<UnpackError>,
}

impl<R: Read> Blob<R> {
    pub(super) fn new(inner: R, size: u64) -> Self {
        Blob {
            inner,
            hasher: Hasher::default(),
            size,
            read: Rc::default(),
            failure: None,
        }
    }

    /// The counter of received bytes.
    pub(super) fn counter(&self) -> Rc<Cell<u64>> {
        Rc::clone(&self.read)
    }

    /// Reads to the end and checks size and digest: the verdict about the blob itself, regardless of its content.
    pub(super) fn verify(mut self, expected: Digest) -> Result<(), UnpackError> {
        let mut buffer = [0; 8 * 1024];
        while self.failure.is_none() {
            match self.read(&mut buffer) {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        let read = self.read.get();
        if read != self.size {
            return Err(UnpackError::BlobTruncated {
                read,
                expected: self.size,
            });
        }
        let actual = self.hasher.finish();
        if actual == expected {
            Ok(())
        } else {
            Err(UnpackError::BlobDigest { expected, actual })
        }
    }
}

impl<R: Read> Read for Blob<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = match self.inner.read(buffer) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Err(error),
            Err(error) => {
                // The decompressor gets a copy; `verify` returns the original.
                let copy = io::Error::new(error.kind(), error.to_string());
                self.failure = Some(UnpackError::Blob(error));
                return Err(copy);
            }
        };
        self.hasher.update(&buffer[..count]);
        self.read.set(self.read.get() + count as u64);
        if self.read.get() > self.size {
            self.failure = Some(UnpackError::BlobTooLong {
                expected: self.size,
            });
            return Err(io::Error::other("the blob is longer than announced"));
        }
        Ok(count)
    }
}

/// The compression of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Compression {
    None,
    Gzip,
    Zstd,
}

/// Detects the compression of a blob by its first bytes. Its media type is not reliable: layers that were packed again on their way keep
/// the old media type. In any case the digest of the content decides.
fn compression_of(first: &[u8]) -> Compression {
    match first {
        [0x1f, 0x8b, ..] => Compression::Gzip,
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Compression::Zstd,
        // A skippable frame: parallel packers begin with one.
        [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Compression::Zstd,
        _ => Compression::None,
    }
}

/// The decoder of a layer.
enum Decoder<R: BufRead> {
    Plain(R),
    Gzip(Box<MultiGzDecoder<R>>),
    Zstd(Box<ZstdFrames<R>>),
}

impl<R: BufRead> Read for Decoder<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Decoder::Plain(inner) => inner.read(buffer),
            Decoder::Gzip(inner) => inner.read(buffer),
            Decoder::Zstd(inner) => inner.read(buffer),
        }
    }
}

/// A reader of zstd frames: chunked images have several, and skippable ones between them.
struct ZstdFrames<R> {
    source: R,
    /// The decoder of the current frame. Each frame gets a new one: a decoder that grows would hold the old window and the new one.
    decoder: Option<FrameDecoder>,
}

impl<R: BufRead> ZstdFrames<R> {
    fn new(source: R) -> Self {
        ZstdFrames {
            source,
            decoder: None,
        }
    }

    /// Enters the next frame; `None` at the end.
    fn next_frame(&mut self) -> io::Result<Option<FrameDecoder>> {
        while !self.source.fill_buf()?.is_empty() {
            let mut decoder = FrameDecoder::new();
            decoder.set_max_window_size(LARGEST_WINDOW);
            match decoder.init(&mut self.source) {
                Ok(()) => return Ok(Some(decoder)),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    let skipped =
                        io::copy(&mut (&mut self.source).take(length.into()), &mut io::sink())?;
                    if skipped < length.into() {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(error) => return Err(io::Error::other(error)),
            }
        }
        Ok(None)
    }
}

impl<R: BufRead> Read for ZstdFrames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let Some(decoder) = &mut self.decoder else {
                self.decoder = self.next_frame()?;
                if self.decoder.is_none() {
                    return Ok(0);
                }
                continue;
            };
            let count = decoder.read(buffer)?;
            if count > 0 || buffer.is_empty() {
                return Ok(count);
            }
            if decoder.is_finished() {
                self.decoder = None;
            } else {
                let one = BlockDecodingStrategy::UptoBlocks(1);
                decoder
                    .decode_blocks(&mut self.source, one)
                    .map_err(io::Error::other)?;
            }
        }
    }
}

/// A blob from its beginning: the bytes that were read to detect the compression, and the rest.
type FromStart<'a, R> = BufReader<Chain<Cursor<Vec<u8>>, &'a mut Blob<R>>>;

/// The unpacked bytes: counted, hashed and limited.
pub(super) struct Unpacked<'a, R: Read> {
    decoder: Decoder<FromStart<'a, R>>,
    /// `None` if the layer is not packed: the blob's own digest is that of its content, and hashing is the most expensive part of a pull.
    hasher: Option<Hasher>,
    compressed: Rc<Cell<u64>>,
    count: u64,
    /// Bytes of the layers before, which count towards the limit of the image.
    before: u64,
    limits: Limits,
    failure: Option<UnpackError>,
}

impl<'a, R: Read> Unpacked<'a, R> {
    pub(super) fn new(blob: &'a mut Blob<R>, limits: Limits, before: u64) -> io::Result<Self> {
        let compressed = blob.counter();
        let mut first = Vec::new();
        blob.by_ref().take(4).read_to_end(&mut first)?;
        let compression = compression_of(&first);
        let source = BufReader::with_capacity(BUFFER, Cursor::new(first).chain(blob));
        let hasher = (compression != Compression::None).then(Hasher::default);
        let decoder = match compression {
            Compression::None => Decoder::Plain(source),
            Compression::Gzip => Decoder::Gzip(Box::new(MultiGzDecoder::new(source))),
            Compression::Zstd => Decoder::Zstd(Box::new(ZstdFrames::new(source))),
        };
        Ok(Unpacked {
            decoder,
            hasher,
            compressed,
            count: 0,
            before,
            limits,
            failure: None,
        })
    }

    /// Reads the bytes after the archive's end mark: they belong to the digest too.
    pub(super) fn drain(&mut self) -> io::Result<()> {
        let mut buffer = [0; 8 * 1024];
        loop {
            match self.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// The bytes of this layer and the ones before, its digest if it differs from the blob's, and the limit that ended it, if one did.
    pub(super) fn finish(self) -> (u64, Option<Digest>, Option<UnpackError>) {
        let digest = self.hasher.map(Hasher::finish);
        (self.before + self.count, digest, self.failure)
    }

    fn exceeded(&self) -> Option<UnpackError> {
        if self.before + self.count > self.limits.unpacked_bytes {
            return Some(UnpackError::TooLarge {
                limit: self.limits.unpacked_bytes,
            });
        }
        let allowed = self.compressed.get().saturating_mul(self.limits.ratio);
        (self.count > self.limits.ratio_from && self.count > allowed).then_some(
            UnpackError::TooDense {
                limit: self.limits.ratio,
            },
        )
    }
}

impl<R: Read> Read for Unpacked<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.decoder.read(buffer)?;
        if let Some(hasher) = &mut self.hasher {
            hasher.update(&buffer[..count]);
        }
        self.count += count as u64;
        if let Some(failure) = self.exceeded() {
            self.failure = Some(failure);
            return Err(io::Error::other("a limit is exceeded"));
        }
        Ok(count)
    }
}
