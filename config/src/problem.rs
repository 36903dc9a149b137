//! The problems of a config, with their positions.

use std::{cell::RefCell, fmt};

/// A position in the file, counted from 1 as in editors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}", self.line, self.column)
    }
}

/// One problem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The position; `None` if the problem concerns the config as a whole.
    pub at: Option<Position>,
    /// The document: `document 3, ContainerConfig web`.
    pub document: Option<String>,
    /// Path of the field within the document: `mounts[0].tmpfs.size`. Empty for the document itself.
    pub path: String,
    /// The problem, and the correct form.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(at) = self.at {
            write!(f, "{at}")?;
            if let Some(document) = &self.document {
                write!(f, " ({document})")?;
            }
            f.write_str(": ")?;
        } else if let Some(document) = &self.document {
            write!(f, "{document}: ")?;
        }
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)
    }
}

/// All problems of a config; never empty.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct ConfigErrors(Vec<Problem>);

impl ConfigErrors {
    /// The problems, in the order of the file.
    #[must_use]
    pub fn problems(&self) -> &[Problem] {
        &self.0
    }

    pub(super) fn one(problem: Problem) -> Self {
        Self(vec![problem])
    }

    pub(super) fn no_machine_document() -> Self {
        Self::one(Problem {
            at: None,
            document: None,
            path: String::new(),
            message: "there is no document `version: v1alpha1` with `machine.type` and `machine.ca`; every machine config needs one".into(),
        })
    }
}

/// Limit on the problems shown: more help nobody, and a hostile file could cause a million.
const SHOWN: usize = 50;

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.0.iter().take(SHOWN).enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{problem}")?;
        }
        if self.0.len() > SHOWN {
            write!(f, "\nand {} more", self.0.len() - SHOWN)?;
        }
        Ok(())
    }
}

/// Collects problems while a config is read; shared by all readers.
#[derive(Debug, Default)]
pub(super) struct Problems {
    all: RefCell<Vec<Problem>>,
    /// Those that only a config which is new to its machine must not have.
    of_new: RefCell<Vec<Problem>>,
}

impl Problems {
    pub(super) fn push(&self, problem: Problem) {
        self.all.borrow_mut().push(problem);
    }

    /// Notes a problem that a version before this one took.
    pub(super) fn push_if_new(&self, problem: Problem) {
        self.of_new.borrow_mut().push(problem);
    }

    /// Takes the problems out that only a new config must not have.
    pub(super) fn take_those_of_new(&self) -> Vec<Problem> {
        self.of_new.take()
    }

    /// Ok if there are no problems so far.
    pub(super) fn result(&self) -> Result<(), ConfigErrors> {
        let mut problems = self.all.borrow().clone();
        problems.extend(self.of_new.borrow().iter().cloned());
        if problems.is_empty() {
            return Ok(());
        }
        problems.sort_by_key(|problem| problem.at);
        Err(ConfigErrors(problems))
    }
}
