//! A caller's filter: a program of classic BPF (linux/filter.h), as `tcpdump -dd` prints it.

use std::io;

use instar_api::machine::BpfInstruction;
use socket2::SockFilter;

/// Instructions that the kernel takes (`BPF_MAXINSNS` of linux/bpf_common.h).
const MOST_INSTRUCTIONS: usize = 4096;

/// Why a program is not a valid filter.
#[derive(Debug, thiserror::Error)]
pub enum FilterError {
    /// It has more instructions than the kernel takes.
    #[error("it has {0} instructions, of {MOST_INSTRUCTIONS} that the kernel takes")]
    TooLong(usize),
    /// A number does not fit into its field of an instruction.
    #[error("{field} of instruction {position} is {value}; it may be up to {largest}")]
    TooLarge {
        /// The field.
        field: &'static str,
        /// The instruction's position, from 0, as in `tcpdump -d`.
        position: usize,
        /// The number.
        value: u32,
        /// The largest number that fits.
        largest: u32,
    },
    /// The kernel refused the program.
    #[error(
        "the kernel refuses it; compile it for this kind of link: tcpdump -dd -y EN10MB for Ethernet and loopback, -y RAW for links \
         without a link layer"
    )]
    Refused(#[source] io::Error),
}

/// Converts the program to the kernel's form. Whether it makes sense is for the kernel to check.
///
/// # Errors
/// [`FilterError::TooLong`] and [`FilterError::TooLarge`].
pub(super) fn program(instructions: &[BpfInstruction]) -> Result<Vec<SockFilter>, FilterError> {
    if instructions.len() > MOST_INSTRUCTIONS {
        return Err(FilterError::TooLong(instructions.len()));
    }
    instructions
        .iter()
        .enumerate()
        .map(|(position, instruction)| {
            let too_large = |field, value, largest| FilterError::TooLarge {
                field,
                position,
                value,
                largest,
            };
            let byte = |field, value: u32| {
                u8::try_from(value).map_err(|_| too_large(field, value, u8::MAX.into()))
            };
            let BpfInstruction { op, jt, jf, k } = *instruction;
            let code = u16::try_from(op).map_err(|_| too_large("op", op, u16::MAX.into()))?;
            Ok(SockFilter::new(code, byte("jt", jt)?, byte("jf", jf)?, k))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn instruction(op: u32, jt: u32, jf: u32) -> BpfInstruction {
        BpfInstruction {
            op,
            jt,
            jf,
            k: u32::MAX,
        }
    }

    #[test]
    fn every_number_of_an_instruction_has_its_range() {
        let largest = [instruction(0xffff, 0xff, 0xff)];
        assert_eq!(program(&largest).unwrap().len(), 1);
        for (bad, words) in [
            (instruction(0x1_0000, 0, 0), "op of instruction 1 is 65536"),
            (instruction(0, 256, 0), "jt of instruction 1 is 256"),
            (instruction(0, 0, 256), "jf of instruction 1 is 256"),
        ] {
            let refused = program(&[largest[0], bad]).unwrap_err().to_string();
            assert!(refused.starts_with(words), "{refused}");
        }
    }

    #[test]
    fn a_program_is_as_long_as_the_kernel_takes() {
        let many = vec![instruction(6, 0, 0); MOST_INSTRUCTIONS];
        assert_eq!(program(&many).unwrap().len(), MOST_INSTRUCTIONS);
        let more = vec![instruction(6, 0, 0); MOST_INSTRUCTIONS + 1];
        assert!(matches!(program(&more), Err(FilterError::TooLong(4097))));
        assert!(program(&[]).unwrap().is_empty());
    }

    /// Any socket takes a filter, so this needs no packet socket.
    #[test]
    fn the_kernel_refuses_what_is_no_program() {
        let socket = std::os::fd::OwnedFd::from(std::net::UdpSocket::bind("127.0.0.1:0").unwrap());
        let attach = |instructions: &[BpfInstruction]| {
            crate::sys::packet_socket::filter(&socket, &program(instructions).unwrap())
        };
        attach(&[instruction(6, 0, 0)]).unwrap();
        // The program does not end with a return.
        let refused = attach(&[instruction(0, 0, 0)]).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
    }
}
