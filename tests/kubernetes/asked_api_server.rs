//! Questions to an API server whether it is ready, one after the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use anyhow::{anyhow, ensure};
use instar_tests::{Kubectl, Outcome};

/// Questions that go on until they are ended.
pub(crate) struct AskedApiServer {
    is_over: Arc<AtomicBool>,
    asker: JoinHandle<Answers>,
}

#[derive(Debug, Default)]
struct Answers {
    ready: usize,
    /// Whatever was not the answer "ok".
    lost: Vec<String>,
}

impl AskedApiServer {
    pub(crate) fn start(kubectl: &Kubectl) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let (kubectl, ends) = (kubectl.clone(), is_over.clone());
        let asker = thread::spawn(move || {
            let mut answers = Answers::default();
            while !ends.load(Ordering::Relaxed) {
                match kubectl.run(&["get", "--raw", "/readyz"]) {
                    Ok(answer) if answer.trim() == "ok" => answers.ready += 1,
                    Ok(answer) => answers.lost.push(answer),
                    Err(error) => answers.lost.push(format!("{error:#}")),
                }
            }
            answers
        });
        Self { is_over, asker }
    }

    /// Fails unless there were answers, and each was that the server is ready.
    pub(crate) fn was_ready_all_the_time(self) -> Outcome {
        self.is_over.store(true, Ordering::Relaxed);
        let answers = self.asker.join().map_err(|_| anyhow!("the asker broke"))?;
        println!("{answers:?}");
        ensure!(
            answers.lost.is_empty() && answers.ready > 0,
            "{:#?}",
            answers.lost
        );
        Ok(())
    }
}
