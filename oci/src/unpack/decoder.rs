//! The compression of a layer, and its decoders.

use std::io::{self, BufRead, Read};

use flate2::bufread::MultiGzDecoder;
use zstd::stream::read::Decoder as ZstdDecoder;

/// The largest zstd window, as a power of two: 16 MiB. `zstd -19` and the usual packing of images need 8 MiB. This is the larger part of
/// the memory that unpacking a layer may take.
const LARGEST_WINDOW_LOG: u32 = 24;

/// The compression of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Compression {
    None,
    Gzip,
    Zstd,
}

impl Compression {
    /// Detects the compression of a blob by its first bytes. Its media type is not reliable: layers that were packed again on their way
    /// keep the old media type. In any case the digest of the content decides.
    pub(super) fn of(first: &[u8]) -> Self {
        match first {
            [0x1f, 0x8b, ..] => Compression::Gzip,
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Compression::Zstd,
            // A skippable frame: parallel packers begin with one.
            [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Compression::Zstd,
            _ => Compression::None,
        }
    }
}

/// The decoder of a layer. Archives of several gzip members or zstd frames are read to their end.
pub(super) enum Decoder<R: BufRead> {
    Plain(R),
    Gzip(Box<MultiGzDecoder<R>>),
    Zstd(Box<ZstdDecoder<'static, R>>),
}

impl<R: BufRead> Decoder<R> {
    pub(super) fn new(compression: Compression, source: R) -> io::Result<Self> {
        Ok(match compression {
            Compression::None => Decoder::Plain(source),
            Compression::Gzip => Decoder::Gzip(Box::new(MultiGzDecoder::new(source))),
            Compression::Zstd => {
                let mut decoder = ZstdDecoder::with_buffer(source)?;
                decoder.window_log_max(LARGEST_WINDOW_LOG)?;
                Decoder::Zstd(Box::new(decoder))
            }
        })
    }
}

impl<R: BufRead> Read for Decoder<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Decoder::Plain(inner) => inner.read(buffer),
            Decoder::Gzip(inner) => inner.read(buffer),
            Decoder::Zstd(inner) => inner.read(buffer).map_err(zstd_error),
        }
    }
}

/// Says what to do about a window that is too large. The library has only a text for it.
fn zstd_error(error: io::Error) -> io::Error {
    if !error.to_string().contains("too much memory") {
        return error;
    }
    io::Error::other(
        "the zstd window is larger than 16 MiB: compress the layer without --ultra and --long",
    )
}
