//! The program's own code in memory. Most of it is needed only at the start; on a small machine its pages are valuable.

use std::ffi::{c_int, c_void};
use std::fs::File;
use std::io;

use rustix::fs::{Advice, fadvise};

/// Bytes of a page on x86-64.
const PAGE: usize = 4096;

/// Makes the kernel read single blocks of the root filesystem from now on: only the needed pages of code and constants, not their
/// neighbours.
pub fn read_singly() -> io::Result<()> {
    advise(libc::MADV_RANDOM)
}

/// Unmaps the code and the constants of this process. Needed pages come back from the page cache, or from the root filesystem.
pub fn forget() -> io::Result<()> {
    advise(libc::MADV_DONTNEED)
}

/// The advice to give, and the result.
struct Advised {
    advice: c_int,
    done: io::Result<()>,
}

/// Gives advice on all read-only mappings of the program's file.
fn advise(advice: c_int) -> io::Result<()> {
    let mut advised = Advised {
        advice,
        done: Ok(()),
    };
    // SAFETY: the callback has the type that dl_iterate_phdr(3) wants, keeps nothing it is given, and `data` is the pointer
    // that it takes it for, which outlives the call.
    #[allow(unsafe_code)]
    unsafe {
        libc::dl_iterate_phdr(Some(advise_on_segments), (&raw mut advised).cast())
    };
    advised.done
}

/// Called once, for the first object: the program itself. The others are libraries, which a static program does not have.
#[allow(unsafe_code)]
unsafe extern "C" fn advise_on_segments(
    object: *mut libc::dl_phdr_info,
    _size: usize,
    advised: *mut c_void,
) -> c_int {
    // SAFETY: the C library gives a valid description of an object and its program headers; `advised` is that of `advise`.
    #[allow(unsafe_code)]
    let (base, segments, advised) = unsafe {
        let object = &*object;
        let segments = std::slice::from_raw_parts(object.dlpi_phdr, object.dlpi_phnum.into());
        (object.dlpi_addr, segments, &mut *advised.cast::<Advised>())
    };
    advised.done = segments
        .iter()
        .filter(|segment| segment.p_type == libc::PT_LOAD && segment.p_flags & libc::PF_W == 0)
        .try_for_each(|segment| {
            let start = (base + segment.p_vaddr) as usize;
            let end = start + segment.p_memsz as usize;
            let (start, end) = (start / PAGE * PAGE, end.next_multiple_of(PAGE));
            advise_on_range(start, end, advised.advice)
        });
    1
}

/// Gives advice on pages of a file that were never written.
fn advise_on_range(start: usize, end: usize, advice: c_int) -> io::Result<()> {
    // SAFETY: whole pages of a segment that is not writable: mapped privately from the file and never written, so that
    // every page can be read again as it was.
    #[allow(unsafe_code)]
    let done = unsafe {
        libc::madvise(
            std::ptr::with_exposed_provenance_mut::<c_void>(start),
            end - start,
            advice,
        )
    };
    if done == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Lets the page cache drop the pages of this program's file that no process has mapped.
pub fn uncache(program: &File) -> io::Result<()> {
    Ok(fadvise(program, 0, None, Advice::DontNeed)?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_program_goes_on_without_its_code_in_memory() {
        read_singly().unwrap();
        for _ in 0..3 {
            forget().unwrap();
            uncache(&File::open("/proc/self/exe").unwrap()).unwrap();
            assert_eq!("still here".to_uppercase(), "STILL HERE");
        }
    }
}
