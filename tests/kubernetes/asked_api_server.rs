//! Questions to an API server, one after the other. It answers them by itself: whether etcd is quick enough for `readyz` depends on the host.

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
    good: usize,
    lost: Vec<String>,
}

/// The question. A busy host delays its answer, so it has more time than others.
const VERSION: [&str; 4] = ["--request-timeout=120s", "get", "--raw", "/version"];

impl AskedApiServer {
    pub(crate) fn start(kubectl: &Kubectl) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let (kubectl, ends) = (kubectl.clone(), is_over.clone());
        let asker = thread::spawn(move || {
            let mut answers = Answers::default();
            while !ends.load(Ordering::Relaxed) {
                match kubectl.run(&VERSION) {
                    Ok(_) => answers.good += 1,
                    Err(error) => answers.lost.push(format!("{error:#}")),
                }
            }
            answers
        });
        Self { is_over, asker }
    }

    /// Fails unless there were answers, and no question was lost.
    pub(crate) fn has_answered_all_the_time(self) -> Outcome {
        self.is_over.store(true, Ordering::Relaxed);
        let answers = self.asker.join().map_err(|_| anyhow!("the asker broke"))?;
        println!("{answers:?}");
        ensure!(
            answers.lost.is_empty() && answers.good > 0,
            "{:#?}",
            answers.lost
        );
        Ok(())
    }
}
