//! Selects one of the machine's disks: by path, by a CEL expression, or by properties.

use std::{collections::HashMap, path::Path};

use cel::{Context, Program, Value, objects::Key};

use super::discover::Disk;
use crate::base::byte_size::human_short;
use crate::modules::glob;
use crate::values::{DiskFields, DiskKind, DiskSelector};

/// Why no disk was selected.
#[derive(Debug, thiserror::Error)]
pub enum SelectError {
    /// The expression is not valid CEL.
    #[error("the disk selector {source_text:?} is not a CEL expression: {reason}")]
    Syntax {
        /// The expression.
        source_text: String,
        /// Position and reason.
        reason: String,
    },
    /// The expression gives neither true nor false.
    #[error("the disk selector {source_text:?} fails on {disk}: {reason}")]
    Evaluation {
        /// The expression.
        source_text: String,
        /// The disk that it was evaluated for.
        disk: String,
        /// Why.
        reason: String,
    },
    /// No disk matches.
    #[error("no disk matches {selector}; the machine has: {candidates}")]
    None {
        /// The selector.
        selector: String,
        /// The machine's disks.
        candidates: String,
    },
    /// More than one disk matches.
    #[error(
        "{selector} matches more than one disk ({candidates}); narrow it down, for example by serial"
    )]
    Ambiguous {
        /// The selector.
        selector: String,
        /// The disks that match.
        candidates: String,
    },
}

/// Checks that a selector's expression is valid.
pub fn check(selector: &DiskSelector) -> Result<(), SelectError> {
    match selector {
        DiskSelector::Cel(text) => on_a_large_stack(|| compile(text).map(drop)),
        DiskSelector::Path(_) | DiskSelector::Fields(_) => Ok(()),
    }
}

/// Returns the one disk that matches. `is_system` tells which disk carries the system, if one does.
///
/// Of several paths to one disk it returns the first. A disk made by software (loop, device-mapper) is selected by path only: a selector such as
/// "larger than 10 GiB" is not meant for it.
pub(super) fn select<'a>(
    selector: &DiskSelector,
    disks: &'a [Disk],
    is_system: impl Fn(&Disk) -> bool,
) -> Result<&'a Disk, SelectError> {
    let mut found = Vec::new();
    for disk in disks {
        let matches = match selector {
            DiskSelector::Path(path) => {
                disk.dev_path.as_path() == path
                    || disk.symlinks.iter().any(|link| Path::new(link) == path)
            }
            _ if disk.software || disk.cdrom => false,
            DiskSelector::Cel(text) => {
                let is_system = is_system(disk);
                on_a_large_stack(|| evaluate(text, disk, is_system))?
            }
            DiskSelector::Fields(fields) => fit(fields, disk),
        };
        if matches {
            found.push(disk);
        }
    }
    match found.as_slice() {
        [first, others @ ..] if others.iter().all(|other| first.is_same_as(other)) => Ok(first),
        [] => {
            let real: Vec<_> = disks.iter().filter(|disk| !disk.software).collect();
            Err(SelectError::None {
                selector: selector.to_string(),
                candidates: list(&real),
            })
        }
        several => Err(SelectError::Ambiguous {
            selector: selector.to_string(),
            candidates: list(several),
        }),
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

/// Length limit of an expression, in bytes.
const LONGEST: usize = 1024;
/// Limit on the brackets, signs and question marks in one expression: each may nest, and the parser recurses with each until the
/// stack ends, which would end machined.
const MOST_NESTING: usize = 40;
/// Stack size that is enough for the limits above (in a debug build, whose frames are large). Only the used part takes memory.
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

/// Runs work on a thread with a large stack: the parser and the evaluation recurse with the length of an expression, and a thread
/// of the runtime has 2 MiB.
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

fn evaluate(text: &str, disk: &Disk, is_system: bool) -> Result<bool, SelectError> {
    let failed = |reason: String| SelectError::Evaluation {
        source_text: text.to_owned(),
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
            |pattern: std::sync::Arc<String>, text: std::sync::Arc<String>| glob(&pattern, &text),
        )
        .map_err(|error| failed(error.to_string()))?;
    context.add_variable_from_value("disk", facts(disk));
    context.add_variable_from_value("system_disk", Value::Bool(is_system));
    match compile(text)?.execute(&context) {
        Ok(Value::Bool(matches)) => Ok(matches),
        Ok(other) => Err(failed(format!("it gives {other:?}, not true or false"))),
        Err(error) => Err(failed(error.to_string())),
    }
}

/// Returns the variable `disk` of an expression.
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

fn fit(fields: &DiskFields, disk: &Disk) -> bool {
    let fits = |pattern: &Option<String>, text: &str| {
        pattern.as_ref().is_none_or(|pattern| glob(pattern, text))
    };
    fields.size.is_none_or(|size| size.holds(disk.size))
        && fits(&fields.name, &disk.name)
        && fits(&fields.model, &disk.model)
        && fits(&fields.serial, &disk.serial)
        && fits(&fields.modalias, &disk.modalias)
        && fits(&fields.uuid, &disk.uuid)
        && fits(&fields.wwid, &disk.wwid)
        && fits(&fields.bus_path, &disk.bus_path)
        && fields.kind.is_none_or(|kind| kind == kind_of(disk))
}

fn kind_of(disk: &Disk) -> DiskKind {
    match disk.transport.as_str() {
        "nvme" => DiskKind::Nvme,
        "mmc" => DiskKind::Sd,
        _ if disk.rotational => DiskKind::Hdd,
        _ => DiskKind::Ssd,
    }
}

#[cfg(test)]
mod tests;
