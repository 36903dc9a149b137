//! The program's own code in memory. Most of it is needed once, at start; on a small machine its pages are worth something.

use std::ffi::{c_char, c_void};
use std::fs::File;
use std::io;

use rustix::fs::{Advice, fadvise};

/// Bytes of a page on x86-64.
const PAGE: usize = 4096;

// SAFETY: symbols of the linker (ld(1), "SECTIONS"): only their addresses mean something, and nothing reads through them.
#[allow(unsafe_code)]
unsafe extern "C" {
    static __executable_start: c_char;
    static etext: c_char;
}

/// Unmaps the code of this process. What is needed again comes back from the page cache, or from the root filesystem.
pub fn forget() -> io::Result<()> {
    let (start, end) = (
        (&raw const __executable_start).addr(),
        (&raw const etext).addr() / PAGE * PAGE,
    );
    // SAFETY: the range holds headers, relocation tables and code: mapped privately from the file, never written (relocated
    // data lies behind `etext`), so that every page can be read again as it was.
    #[allow(unsafe_code)]
    let done = unsafe {
        libc::madvise(
            std::ptr::with_exposed_provenance_mut::<c_void>(start),
            end.saturating_sub(start),
            libc::MADV_DONTNEED,
        )
    };
    if done == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Lets the page cache drop what no process has mapped of this program's file.
pub fn uncache(program: &File) -> io::Result<()> {
    Ok(fadvise(program, 0, None, Advice::DontNeed)?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_program_goes_on_without_its_code_in_memory() {
        for _ in 0..3 {
            forget().unwrap();
            uncache(&File::open("/proc/self/exe").unwrap()).unwrap();
            assert_eq!("still here".to_uppercase(), "STILL HERE");
        }
    }
}
