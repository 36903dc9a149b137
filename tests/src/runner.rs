//! Runs tests with libtest's own arguments: `--list`, filters, `--exact`, `--test-threads`.
//!
//! Four tests run at once unless told otherwise, each in a thread with an async runtime of its own. Waiting in the body of a
//! test blocks nothing but that body: connections and streams are driven by the runtime's workers.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context as _, Result};
use libtest_mimic::{Arguments, Failed, Trial};

use crate::scratch::Scratch;

/// The result of a test.
pub type Outcome = Result<()>;

/// Number of tests at once. Each has a VM that keeps a host CPU busy while it boots and upgrades, and is idle for half
/// of the time: four keep two CPUs busy. With five the run is not shorter, and each VM has so little of a CPU that its
/// clients' timeouts expire.
const THREADS: usize = 4;

/// Prefix of a failure's line; `build/test-everything` repeats the line at its end.
const FAILED: &str = "failed: ";
/// Number of characters of the reason in that line.
const SUMMARY_CHARACTERS: usize = 800;

/// A test: a name and a function.
pub struct Test {
    name: String,
    body: Box<dyn FnOnce(Scratch) -> Outcome + Send>,
}

impl fmt::Debug for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Test")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl Test {
    /// Returns a test of the module `module_path!()`; use the macro [`crate::tests`].
    pub fn new<Body, Future>(module: &str, name: &str, body: Body) -> Self
    where
        Body: FnOnce(Scratch) -> Future + Send + 'static,
        Future: std::future::Future<Output = Outcome>,
    {
        let area = module
            .split_once("::")
            .map_or(module, |(_crate, area)| area);
        let body = move |scratch| {
            let mut runtime = tokio::runtime::Builder::new_multi_thread();
            runtime
                .worker_threads(2)
                .enable_all()
                .build()?
                .block_on(body(scratch))
        };
        Self {
            name: format!("{area}::{name}"),
            body: Box::new(body),
        }
    }
}

/// Lists a module's tests: `tests![boots, serves]` for functions of that name in it.
#[macro_export]
macro_rules! tests {
    ($($name:ident),* $(,)?) => {
        vec![$($crate::Test::new(module_path!(), stringify!($name), $name)),*]
    };
}

/// Runs the chapters of a story, one after the other: `chapters![boots(&node), serves(&node)].await`, each a function
/// of that name. The first failure ends the story, and the report names its chapter.
#[macro_export]
macro_rules! chapters {
    ($($chapter:ident($($argument:expr),* $(,)?)),+ $(,)?) => {
        async {
            $($crate::chapter(stringify!($chapter), $chapter($($argument),*)).await?;)+
            $crate::Outcome::Ok(())
        }
    };
}

/// Runs one chapter; use the macro [`chapters!`](crate::chapters).
///
/// # Errors
/// The chapter's own, behind its name.
pub async fn chapter(name: &str, told: impl Future<Output = Outcome>) -> Outcome {
    told.await.with_context(|| format!("in the chapter {name}"))
}

/// Runs the tests that the command line selects and prints the summary.
pub fn run(tests: Vec<Test>) -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = arguments.test_threads.or(Some(THREADS));
    let trials = tests.into_iter().map(|test| {
        let name = test.name.clone();
        Trial::test(name, move || run_one(test))
    });
    libtest_mimic::run(&arguments, trials.collect()).exit_code()
}

fn run_one(test: Test) -> Result<(), Failed> {
    let scratch = Scratch::make(&test.name).map_err(|error| format!("{error:#}"))?;
    let of_test = scratch.clone();
    let began = Instant::now();
    // The test's machines end when it unwinds, and their consoles stay in the scratch directory.
    let ended = catch_unwind(AssertUnwindSafe(|| (test.body)(of_test)));
    println!("{}: {:.0} s", test.name, began.elapsed().as_secs_f64());
    let why = match ended {
        Ok(Ok(())) => {
            return scratch
                .remove()
                .map_err(|error| format!("{error:#}").into());
        }
        Ok(Err(error)) => format!("{error:#}"),
        Err(payload) => format!("panicked: {}", panic_text(payload.as_ref())),
    };
    // One line for the summary of the whole run; the full reason that follows is long.
    println!("{FAILED}{}: {}", test.name, in_one_line(&why));
    Err(format!(
        "{why}\n  kept: {}\n{}",
        scratch.path().display(),
        scratch.tails()
    )
    .into())
}

/// Returns the beginning of a reason, which may have many lines, in one line.
fn in_one_line(why: &str) -> String {
    let words: Vec<&str> = why.split_whitespace().collect();
    words.join(" ").chars().take(SUMMARY_CHARACTERS).collect()
}

fn panic_text(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<&str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("without a message")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::*;

    async fn leaves_a_log(scratch: Scratch) -> Outcome {
        scratch.write("console.log", "last words\n")?;
        anyhow::bail!("no reason")
    }

    #[test]
    fn a_failure_shows_the_console_and_keeps_the_directory() {
        let failed = run_one(Test::new("e2e::runner", "fails", leaves_a_log)).unwrap_err();
        let text = failed.message().unwrap().to_owned();
        assert!(
            text.starts_with("no reason\n  kept: ") && text.ends_with("  | last words\n"),
            "{text}"
        );
        let scratch = Scratch::make("runner::fails").unwrap();
        scratch.remove().unwrap();
    }

    async fn begins(words: &str) -> Outcome {
        anyhow::ensure!(words == "once");
        Ok(())
    }

    async fn ends_badly() -> Outcome {
        anyhow::bail!("no reason")
    }

    #[test]
    fn a_story_that_fails_names_the_chapter() {
        let test = Test::new("e2e::runner", "story", |_| async {
            chapters![begins("once"), ends_badly(), begins("never")].await
        });
        let text = run_one(test).unwrap_err().message().unwrap().to_owned();
        assert!(
            text.starts_with("in the chapter ends_badly: no reason\n"),
            "{text}"
        );
        Scratch::make("runner::story").unwrap().remove().unwrap();
    }

    #[test]
    fn the_summary_has_a_reason_of_many_lines_in_one() {
        assert_eq!(in_one_line("Said {\n    code: 1,\n}"), "Said { code: 1, }");
        assert_eq!(in_one_line(&"long ".repeat(1000)).len(), SUMMARY_CHARACTERS);
    }

    #[test]
    fn a_panic_is_a_failure_with_its_words() {
        let test = Test::new("e2e::runner", "panics", |_| async {
            if true {
                panic!("very {}", "bad");
            }
            Ok(())
        });
        let text = run_one(test).unwrap_err().message().unwrap().to_owned();
        assert!(text.starts_with("panicked: very bad\n"), "{text}");
        Scratch::make("runner::panics").unwrap().remove().unwrap();
    }

    #[test]
    fn a_pass_leaves_nothing() {
        let path = std::sync::Arc::new(std::sync::Mutex::new(None));
        let seen = std::sync::Arc::clone(&path);
        let test = Test::new("e2e::runner", "passes", |scratch: Scratch| async move {
            *seen.lock().unwrap() = Some(scratch.path().to_owned());
            Ok(())
        });
        assert_eq!(test.name, "runner::passes");
        run_one(test).unwrap();
        let path = path.lock().unwrap().clone().unwrap();
        assert!(!path.exists());
    }
}
