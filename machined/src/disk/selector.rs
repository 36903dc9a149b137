//! Which disk is meant: by path, by a CEL expression, or by the older field-wise selector.

use std::{
    collections::HashMap,
    fmt,
    path::{Path, PathBuf},
    str::FromStr,
};

use cel::{Context, Program, Value, objects::Key};

use super::discover::Disk;
use crate::base::byte_size::human_short;
use crate::modules::glob;

/// A way to name a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DiskSelector {
    /// A device path or one of its names below /dev/disk/by-id.
    Path(PathBuf),
    /// A CEL expression over `disk` and `system_disk`.
    Expression(Expression),
    /// Fields that must all fit.
    Fields(Box<DiskFields>),
}

/// A CEL expression that has been parsed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expression(String);

/// The fields of Talos's older `diskSelector`. Texts may hold `*`, `?` and `[sets]`; none means any.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DiskFields {
    /// Such as `>= 100GB`.
    pub size: Option<SizeCondition>,
    /// The kernel's name, such as `vda`.
    pub name: Option<String>,
    /// The model.
    pub model: Option<String>,
    /// The serial number.
    pub serial: Option<String>,
    /// The driver's alias.
    pub modalias: Option<String>,
    /// The NVMe UUID.
    pub uuid: Option<String>,
    /// The world-wide name.
    pub wwid: Option<String>,
    /// The kind of disk.
    pub kind: Option<DiskKind>,
    /// Where it hangs below /sys/devices.
    pub bus_path: Option<String>,
}

/// `type` of the older selector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskKind {
    /// Not rotational and not NVMe or SD.
    Ssd,
    /// Rotational.
    Hdd,
    /// NVMe.
    Nvme,
    /// SD card or eMMC.
    Sd,
}

/// A comparison with a size in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SizeCondition {
    comparison: Comparison,
    bytes: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Comparison {
    Less,
    AtMost,
    Equal,
    AtLeast,
    More,
}

/// Why no disk was selected.
#[derive(Debug, thiserror::Error)]
pub enum SelectError {
    /// The expression is not CEL.
    #[error("the disk selector {source_text:?} is not a CEL expression: {reason}")]
    Syntax {
        /// What was written.
        source_text: String,
        /// Where and why.
        reason: String,
    },
    /// The expression does not give true or false.
    #[error("the disk selector {source_text:?} fails on {disk}: {reason}")]
    Evaluation {
        /// What was written.
        source_text: String,
        /// The disk that it was tried on.
        disk: String,
        /// Why.
        reason: String,
    },
    /// `type:` of the older selector.
    #[error("{0:?} is no disk type; there are ssd, hdd, nvme and sd")]
    Kind(String),
    /// `size:` of the older selector.
    #[error("{0:?} is no disk size; write for example 100GB, >= 1TB or < 64GiB")]
    Size(String),
    /// Nothing fits.
    #[error("no disk matches {selector}; the machine has: {candidates}")]
    None {
        /// What was asked for.
        selector: String,
        /// The disks that there are.
        candidates: String,
    },
    /// More than one fits.
    #[error(
        "{selector} matches more than one disk ({candidates}); narrow it down, for example by serial"
    )]
    Ambiguous {
        /// What was asked for.
        selector: String,
        /// The disks that match.
        candidates: String,
    },
}

impl DiskSelector {
    /// The one disk that is meant. `is_system` tells which disk carries the system, if one does.
    ///
    /// What software made (loop, device-mapper) is selected by path only: nobody means it by "larger than 10 GiB".
    pub fn select<'a>(
        &self,
        disks: &'a [Disk],
        is_system: impl Fn(&Disk) -> bool,
    ) -> Result<&'a Disk, SelectError> {
        let mut found = Vec::new();
        for disk in disks {
            let matches = match self {
                Self::Path(path) => {
                    disk.dev_path.as_path() == path
                        || disk.symlinks.iter().any(|link| Path::new(link) == path)
                }
                _ if disk.software || disk.cdrom => false,
                Self::Expression(expression) => expression.matches(disk, is_system(disk))?,
                Self::Fields(fields) => fields.matches(disk),
            };
            if matches {
                found.push(disk);
            }
        }
        match found.as_slice() {
            [one] => Ok(one),
            [] => {
                let real: Vec<_> = disks.iter().filter(|disk| !disk.software).collect();
                Err(SelectError::None {
                    selector: self.to_string(),
                    candidates: list(&real),
                })
            }
            several => Err(SelectError::Ambiguous {
                selector: self.to_string(),
                candidates: list(several),
            }),
        }
    }
}

impl fmt::Display for DiskSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => write!(f, "the path {}", path.display()),
            Self::Expression(Expression(text)) => write!(f, "the expression {text:?}"),
            Self::Fields(fields) => write!(f, "the disk selector {fields:?}"),
        }
    }
}

fn list(disks: &[&Disk]) -> String {
    if disks.is_empty() {
        return "no disks".to_owned();
    }
    let one = |disk: &&Disk| {
        let known: Vec<&str> = [disk.transport.as_str(), &disk.model, &disk.serial]
            .into_iter()
            .filter(|text| !text.is_empty())
            .collect();
        format!(
            "{} ({}{}{})",
            disk.dev_path,
            human_short(disk.size),
            if known.is_empty() { "" } else { ", " },
            known.join(", ")
        )
    };
    disks.iter().map(one).collect::<Vec<_>>().join(", ")
}

impl FromStr for Expression {
    type Err = SelectError;

    fn from_str(text: &str) -> Result<Self, SelectError> {
        on_a_large_stack(|| compile(text).map(drop))?;
        Ok(Self(text.to_owned()))
    }
}

/// The longest expression, in bytes.
const LONGEST: usize = 1024;
/// The most brackets, signs and question marks in one expression: each may nest, and the parser recurses with each until the
/// stack ends, which would end machined.
const MOST_NESTING: usize = 40;
/// Enough for what is allowed above (in a debug build, whose frames are large). Only what is used of it takes memory.
const LARGE_STACK: usize = 64 << 20;

fn compile(text: &str) -> Result<Program, SelectError> {
    let refused = |reason: String| SelectError::Syntax {
        source_text: text.chars().take(80).collect(),
        reason,
    };
    if text.len() > LONGEST {
        return Err(refused(format!("it is longer than {LONGEST} bytes")));
    }
    if text.matches(['(', '[', '{', '!', '-', '?']).count() > MOST_NESTING {
        return Err(refused(format!(
            "it has more than {MOST_NESTING} of ( [ {{ ! - ?"
        )));
    }
    Program::compile(text).map_err(|errors| refused(errors.to_string()))
}

/// The parser and the evaluation recurse with the length of an expression; a thread of the runtime has 2 MiB.
fn on_a_large_stack<T: Send>(
    work: impl FnOnce() -> Result<T, SelectError> + Send,
) -> Result<T, SelectError> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .stack_size(LARGE_STACK)
            .spawn_scoped(scope, work);
        let no_thread = |reason: &str| SelectError::Syntax {
            source_text: String::new(),
            reason: format!("no thread to read it: {reason}"),
        };
        match thread.map(|thread| thread.join()) {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(no_thread("it panicked")),
            Err(error) => Err(no_thread(&error.to_string())),
        }
    })
}

impl Expression {
    fn matches(&self, disk: &Disk, is_system: bool) -> Result<bool, SelectError> {
        on_a_large_stack(|| self.evaluate(disk, is_system))
    }

    fn evaluate(&self, disk: &Disk, is_system: bool) -> Result<bool, SelectError> {
        let failed = |reason: String| SelectError::Evaluation {
            source_text: self.0.clone(),
            disk: disk.dev_path.to_string(),
            reason,
        };
        let mut context = Context::default();
        for (name, power) in [
            ("KiB", 10),
            ("MiB", 20),
            ("GiB", 30),
            ("TiB", 40),
            ("PiB", 50),
        ] {
            context.add_variable_from_value(name, Value::UInt(1 << power));
        }
        for (name, power) in [("kB", 1), ("MB", 2), ("GB", 3), ("TB", 4), ("PB", 5)] {
            context.add_variable_from_value(name, Value::UInt(1000_u64.pow(power)));
        }
        context
            .add_function(
                "glob",
                |pattern: std::sync::Arc<String>, text: std::sync::Arc<String>| {
                    glob(&pattern, &text)
                },
            )
            .map_err(|error| failed(error.to_string()))?;
        context.add_variable_from_value("disk", facts(disk));
        context.add_variable_from_value("system_disk", Value::Bool(is_system));
        match compile(&self.0)?.execute(&context) {
            Ok(Value::Bool(matches)) => Ok(matches),
            Ok(other) => Err(failed(format!("it gives {other:?}, not true or false"))),
            Err(error) => Err(failed(error.to_string())),
        }
    }
}

/// What an expression sees as `disk`.
fn facts(disk: &Disk) -> Value {
    let text = |text: &str| Value::from(text);
    let facts: HashMap<Key, Value> = [
        ("dev_path", text(&disk.dev_path.to_string())),
        ("size", Value::UInt(disk.size)),
        ("sector_size", Value::UInt(disk.sector_size)),
        ("model", text(&disk.model)),
        ("serial", text(&disk.serial)),
        ("wwid", text(&disk.wwid)),
        ("uuid", text(&disk.uuid)),
        ("modalias", text(&disk.modalias)),
        ("transport", text(&disk.transport)),
        ("rotational", Value::Bool(disk.rotational)),
        ("readonly", Value::Bool(disk.readonly)),
        ("cdrom", Value::Bool(disk.cdrom)),
        ("bus_path", text(&disk.bus_path)),
        ("symlinks", Value::from(disk.symlinks.clone())),
    ]
    .into_iter()
    .map(|(name, value)| (Key::from(name), value))
    .collect();
    Value::from(facts)
}

impl DiskFields {
    fn matches(&self, disk: &Disk) -> bool {
        let fits = |pattern: &Option<String>, text: &str| {
            pattern.as_ref().is_none_or(|pattern| glob(pattern, text))
        };
        self.size.is_none_or(|size| size.holds(disk.size))
            && fits(&self.name, &disk.name)
            && fits(&self.model, &disk.model)
            && fits(&self.serial, &disk.serial)
            && fits(&self.modalias, &disk.modalias)
            && fits(&self.uuid, &disk.uuid)
            && fits(&self.wwid, &disk.wwid)
            && fits(&self.bus_path, &disk.bus_path)
            && self.kind.is_none_or(|kind| kind == DiskKind::of(disk))
    }
}

impl DiskKind {
    fn of(disk: &Disk) -> Self {
        match disk.transport.as_str() {
            "nvme" => Self::Nvme,
            "mmc" => Self::Sd,
            _ if disk.rotational => Self::Hdd,
            _ => Self::Ssd,
        }
    }
}

impl FromStr for DiskKind {
    type Err = SelectError;

    fn from_str(text: &str) -> Result<Self, SelectError> {
        match text.to_ascii_lowercase().as_str() {
            "ssd" => Ok(Self::Ssd),
            "hdd" => Ok(Self::Hdd),
            "nvme" => Ok(Self::Nvme),
            "sd" => Ok(Self::Sd),
            _ => Err(SelectError::Kind(text.to_owned())),
        }
    }
}

impl SizeCondition {
    fn holds(self, bytes: u64) -> bool {
        match self.comparison {
            Comparison::Less => bytes < self.bytes,
            Comparison::AtMost => bytes <= self.bytes,
            Comparison::Equal => bytes == self.bytes,
            Comparison::AtLeast => bytes >= self.bytes,
            Comparison::More => bytes > self.bytes,
        }
    }
}

impl FromStr for SizeCondition {
    type Err = SelectError;

    fn from_str(text: &str) -> Result<Self, SelectError> {
        let trimmed = text.trim();
        let (comparison, rest) = [
            ("<=", Comparison::AtMost),
            (">=", Comparison::AtLeast),
            ("==", Comparison::Equal),
            ("<", Comparison::Less),
            (">", Comparison::More),
        ]
        .into_iter()
        .find_map(|(sign, comparison)| Some((comparison, trimmed.strip_prefix(sign)?)))
        .unwrap_or((Comparison::Equal, trimmed));
        let bytes = parse_size(rest).ok_or_else(|| SelectError::Size(text.to_owned()))?;
        Ok(Self { comparison, bytes })
    }
}

/// `100GB`, `64 GiB`, `1.5TB`, `4096`. Powers of 1000 without the `i`, as disks are sold.
fn parse_size(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor: u64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kb" => 1000,
        "m" | "mb" => 1000_u64.pow(2),
        "g" | "gb" => 1000_u64.pow(3),
        "t" | "tb" => 1000_u64.pow(4),
        "ki" | "kib" => 1 << 10,
        "mi" | "mib" => 1 << 20,
        "gi" | "gib" => 1 << 30,
        "ti" | "tib" => 1 << 40,
        _ => return None,
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let whole = whole.parse::<u64>().ok()?.checked_mul(factor)?;
    if fraction.is_empty() {
        return Some(whole);
    }
    let scale = 10_u128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let part = u128::from(factor).checked_mul(fraction.parse().ok()?)? / scale;
    whole.checked_add(u64::try_from(part).ok()?)
}

#[cfg(test)]
mod tests;
