//! The kernel's messages about devices (NETLINK_KOBJECT_UEVENT): that one came or went. They only say when to look; sysfs has the devices.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::netlink::{KOBJECT_UEVENT, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::sys::readiness;

/// The multicast group of the kernel's own words; group 2 would be a device manager's.
const KERNEL: u32 = 1;
/// Size limit of a word: the kernel's is 2 KiB, and a header.
const LONGEST: usize = 4096;
/// Pause after a word: a stick makes a dozen of them, for its controller, disk and partitions.
const BURST: Duration = Duration::from_millis(500);

/// The subject of a burst of messages from the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Word {
    /// A block device came, went or changed.
    pub block: bool,
    /// A device came that names a driver for itself.
    pub wants_driver: bool,
}

/// The socket.
pub struct Uevents {
    socket: AsyncFd<OwnedFd>,
}

impl Uevents {
    /// Begins to listen.
    ///
    /// # Errors
    /// The kernel gives no such socket.
    pub fn listen() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (family, kind) = (AddressFamily::NETLINK, SocketType::DGRAM);
        let socket = socket_with(family, kind, flags, Some(KOBJECT_UEVENT))?;
        bind(&socket, &SocketAddrNetlink::new(0, KERNEL))?;
        Ok(Uevents {
            socket: readiness::watch(socket, Interest::READABLE)?,
        })
    }

    /// Waits for the next burst of words about block devices or drivers.
    ///
    /// # Errors
    /// The socket failed.
    pub async fn next(&self) -> io::Result<Word> {
        let mut word = Word::default();
        while word == Word::default() {
            drop(self.socket.readable().await?);
            tokio::time::sleep(BURST).await;
            word = self.drain().await?;
        }
        Ok(word)
    }

    /// Reads all words that have come.
    async fn drain(&self) -> io::Result<Word> {
        let mut word = Word::default();
        let mut ready = self.socket.readable().await?;
        let mut buffer = [0; LONGEST];
        loop {
            match recv(self.socket.get_ref(), &mut buffer, RecvFlags::DONTWAIT) {
                Ok((_, length)) => word.add(buffer.get(..length).unwrap_or_default()),
                Err(Errno::AGAIN) => {
                    ready.clear_ready();
                    return Ok(word);
                }
                Err(Errno::INTR) => {}
                // Words were lost: anything may have happened.
                Err(Errno::NOBUFS) => word = Word::ANYTHING,
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl Word {
    /// A block device may have come or gone.
    pub const BLOCK: Word = Word {
        block: true,
        wants_driver: false,
    };
    /// Anything may have happened.
    pub const ANYTHING: Word = Word {
        block: true,
        wants_driver: true,
    };

    fn add(&mut self, message: &[u8]) {
        let mut fields = message.split(|&byte| byte == 0);
        let is_new = fields.next().is_some_and(|head| head.starts_with(b"add@"));
        for field in fields {
            self.block |= field == b"SUBSYSTEM=block";
            self.wants_driver |= is_new && field.starts_with(b"MODALIAS=");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_about_block_devices_and_drivers_count() {
        let word = |message: &[u8]| {
            let mut word = Word::default();
            word.add(message);
            (word.block, word.wants_driver)
        };
        let disk = b"add@/devices/x/block/sda\0ACTION=add\0SUBSYSTEM=block\0DEVNAME=sda\0";
        assert_eq!(word(disk), (true, false));
        let gone = b"remove@/devices/x/block/sda\0ACTION=remove\0SUBSYSTEM=block\0";
        assert_eq!(word(gone), (true, false));
        let usb = b"add@/devices/usb1/1-1\0ACTION=add\0SUBSYSTEM=usb\0MODALIAS=usb:v0781p5581\0";
        assert_eq!(word(usb), (false, true));
        let bound =
            b"bind@/devices/usb1/1-1\0ACTION=bind\0SUBSYSTEM=usb\0MODALIAS=usb:v0781p5581\0";
        assert_eq!(word(bound), (false, false));
        for other in [
            &b""[..],
            b"\0\0\0",
            b"libudev\0\xfe\xed\xca\xfe",
            b"add@/module/x\0ACTION=add\0SUBSYSTEM=module\0",
        ] {
            assert_eq!(word(other), (false, false));
        }
    }
}
