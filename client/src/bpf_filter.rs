//! A packet filter as `tcpdump -dd` prints it: a program of classic BPF, `{ op, jt, jf, k },` for each instruction.

use std::str::FromStr;

use instar_api::machine::BpfInstruction;

/// The program; there is at least one instruction.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct BpfFilter(pub(crate) Vec<BpfInstruction>);

/// Why a text is not a BPF program.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoFilter {
    /// An empty program: as a filter it would let everything through.
    #[error("it is empty; see what `tcpdump -dd` has to say")]
    Empty,
    #[error(
        "instruction {position} is {text:?}, not like {{ 0x28, 0, 0, 0x0000000c }}; `tcpdump -dd` prints them so"
    )]
    Instruction { position: usize, text: String },
}

impl FromStr for BpfFilter {
    type Err = NoFilter;

    fn from_str(text: &str) -> Result<Self, NoFilter> {
        // The last instruction may have a comma at its end, too.
        let text = text.trim();
        let text = text.strip_suffix(',').unwrap_or(text).trim_end();
        if text.is_empty() {
            return Err(NoFilter::Empty);
        }
        text.split_inclusive('}')
            .enumerate()
            .map(|(position, part)| {
                let part = part.trim_start();
                let part = match position {
                    0 => Some(part),
                    _ => part.strip_prefix(',').map(str::trim_start),
                };
                part.and_then(instruction)
                    .ok_or_else(|| NoFilter::Instruction {
                        position,
                        text: part.unwrap_or_default().to_owned(),
                    })
            })
            .collect::<Result<_, _>>()
            .map(Self)
    }
}

fn instruction(text: &str) -> Option<BpfInstruction> {
    let numbers = text.strip_prefix('{')?.strip_suffix('}')?;
    let numbers: Option<Vec<u32>> = numbers.split(',').map(number).collect();
    match *numbers? {
        [op, jt, jf, k] => Some(BpfInstruction { op, jt, jf, k }),
        _ => None,
    }
}

/// A decimal or hexadecimal number: 40 or 0x28.
fn number(text: &str) -> Option<u32> {
    let text = text.trim();
    match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// `tcpdump -dd ip`
    const IP: &str = "\
{ 0x28, 0, 0, 0x0000000c },
{ 0x15, 0, 1, 0x00000800 },
{ 0x6, 0, 0, 0x00040000 },
{ 0x6, 0, 0, 0x00000000 },
";

    fn read(text: &str) -> Result<Vec<[u32; 4]>, NoFilter> {
        let BpfFilter(program) = text.parse()?;
        let numbers = |one: &BpfInstruction| [one.op, one.jt, one.jf, one.k];
        Ok(program.iter().map(numbers).collect())
    }

    #[test]
    fn what_tcpdump_prints_is_read() {
        let ip = [
            [0x28, 0, 0, 12],
            [0x15, 0, 1, 0x800],
            [6, 0, 0, 0x40000],
            [6, 0, 0, 0],
        ];
        assert_eq!(read(IP).unwrap(), ip);
        // In one line, as a shell passes it on without quotes, and without the last comma.
        let one_line = IP.replace('\n', " ");
        assert_eq!(read(&one_line).unwrap(), ip);
        assert_eq!(read(one_line.trim().trim_end_matches(',')).unwrap(), ip);
        let largest = read("{0xffffffff,255,255,4294967295}").unwrap();
        assert_eq!(largest, [[u32::MAX, 255, 255, u32::MAX]]);
    }

    #[test]
    fn nothing_is_no_filter() {
        for text in ["", " \n", ",", "\n,\n"] {
            assert_eq!(read(text), Err(NoFilter::Empty), "{text:?}");
        }
    }

    #[test]
    fn the_instruction_that_is_none_is_named() {
        for (bad, position) in [
            ("tcp port 80", 0),
            ("4\n40 0 0 12\n", 0),
            ("{ 0x28, 0, 0 },", 0),
            ("{ 0x28, 0, 0, 1, 2 },", 0),
            ("{ 0x28, -1, 0, 1 },", 0),
            ("{ 0x28, 0, 0, 0x1ffffffff },", 0),
            ("{ 0x28, 0, 0, },", 0),
            ("{ 0x6, 0, 0, 0 }, { 0x6, 0, 0, 0", 1),
            ("{ 0x6, 0, 0, 0 } { 0x6, 0, 0, 0 }", 1),
            ("{ 0x6, 0, 0, 0 }, tcpdump: syntax error", 1),
        ] {
            match read(bad) {
                Err(NoFilter::Instruction { position: said, .. }) => {
                    assert_eq!(said, position, "{bad:?}");
                }
                other => panic!("{bad:?}: {other:?}"),
            }
        }
    }
}
