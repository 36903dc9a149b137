//! The blocks of a tar archive: headers, and the content of each.
//!
//! Headers are parsed by the tar crate. Finding them is done here, because the entry decides the length of its content: a pax header before
//! it may name another size than its own field, and links and directories have no content whatever their field says.

use std::io::{self, Read};

use tar::Header;

const BLOCK: u64 = 512;

/// An archive that is being read. As a reader it returns the content of the last header.
pub(super) struct Archive<R> {
    inner: R,
    /// Bytes of content still to be read.
    content: u64,
    /// Bytes from the end of the content to the next block.
    padding: u64,
}

impl<R: Read> Archive<R> {
    pub(super) fn new(inner: R) -> Self {
        Archive {
            inner,
            content: 0,
            padding: 0,
        }
    }

    /// The next header, past the content of the one before. `None` at the archive's end.
    pub(super) fn next_header(&mut self) -> io::Result<Option<Header>> {
        let rest = self.content.saturating_add(self.padding);
        if io::copy(&mut (&mut self.inner).take(rest), &mut io::sink())? < rest {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        (self.content, self.padding) = (0, 0);
        let mut header = Header::new_old();
        let block = header.as_mut_bytes();
        // Some tools leave out the end mark.
        let first = loop {
            match self.inner.read(&mut block[..1]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => break result?,
            }
        };
        if first == 0 {
            return Ok(None);
        }
        self.inner.read_exact(&mut block[1..])?;
        if block.iter().all(|&byte| byte == 0) {
            return Ok(None);
        }
        if header.cksum()? != checksum(header.as_bytes()) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the checksum of an archive header is wrong",
            ));
        }
        Ok(Some(header))
    }

    /// Sets the length of the content that follows the last header.
    pub(super) fn set_content(&mut self, bytes: u64) {
        self.content = bytes;
        self.padding = (BLOCK - bytes % BLOCK) % BLOCK;
    }

    /// Reads a block between a header and its content, as old sparse files have.
    pub(super) fn block(&mut self, block: &mut [u8; BLOCK as usize]) -> io::Result<()> {
        self.inner.read_exact(block)
    }
}

impl<R: Read> Read for Archive<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.content).unwrap_or(usize::MAX);
        let most = most.min(buffer.len());
        let count = self.inner.read(&mut buffer[..most])?;
        self.content -= count as u64;
        Ok(count)
    }
}

/// The sum of the header's bytes, with spaces in place of the sum itself.
fn checksum(header: &[u8; BLOCK as usize]) -> u32 {
    let sum = |bytes: &[u8]| bytes.iter().map(|&byte| u32::from(byte)).sum::<u32>();
    sum(&header[..148]) + 8 * u32::from(b' ') + sum(&header[156..])
}
