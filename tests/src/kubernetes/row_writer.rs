//! A client of PostgreSQL that commits one row after the other, through all ends of its connection, and remembers each row that the server has
//! confirmed. The client is `psql`, so that all of the protocol is PostgreSQL's own.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use instar_base::lock::Lock as _;

use crate::run_command::run;

/// A server that does not confirm a row within this time is gone: its machine was reset, and nobody ends the connection.
const ANSWER: Duration = Duration::from_secs(20);
/// The pause before another connection.
const PAUSE: Duration = Duration::from_millis(500);
const TABLE: &str = "CREATE TABLE IF NOT EXISTS rows (n bigint PRIMARY KEY)";

/// A database at `HOST:PORT`.
#[derive(Debug, Clone)]
pub struct Database {
    host: String,
    port: String,
}

impl Database {
    /// Names the database.
    pub fn at(address: &str) -> Result<Self> {
        let (host, port) = address.split_once(':').context("no HOST:PORT")?;
        Ok(Self {
            host: host.to_owned(),
            port: port.to_owned(),
        })
    }

    /// Makes the table of the rows, unless it is there.
    pub fn has_table(&self) -> Result<()> {
        self.ask(TABLE).map(drop)
    }

    /// Carries out one statement; returns its rows.
    pub fn ask(&self, statement: &str) -> Result<String> {
        run(self.psql().args(["-c", statement]))
    }

    fn psql(&self) -> Command {
        let mut psql = Command::new("psql");
        psql.args(["-X", "-q", "-A", "-t", "-w", "-v", "ON_ERROR_STOP=1"])
            .args(["-h", &self.host, "-p", &self.port, "-U", "postgres"])
            .env("PGCONNECT_TIMEOUT", "10");
        psql
    }
}

/// The rows that the server has confirmed.
#[derive(Debug, Default, Clone)]
pub struct Committed {
    rows: Vec<u64>,
    /// How many connections it took.
    pub connections: u64,
    /// The longest time from one confirmed row to the next one.
    pub longest_gap: Duration,
}

impl Committed {
    /// The number of rows.
    pub fn count(&self) -> usize {
        self.rows.len()
    }

    /// Fails if the database lacks one of the rows, or has found a damaged page.
    pub fn are_in(&self, database: &Database) -> Result<()> {
        let found = database.ask("SELECT n FROM rows ORDER BY n")?;
        let found: Vec<u64> = found.lines().map(str::parse).collect::<Result<_, _>>()?;
        let lost = |row: &&u64| found.binary_search(row).is_err();
        let lost: Vec<&u64> = self.rows.iter().filter(lost).collect();
        ensure!(lost.is_empty(), "lost, though confirmed: {lost:?}");
        let damaged = "SELECT coalesce(sum(checksum_failures), 0) FROM pg_stat_database";
        let damaged = database.ask(damaged)?;
        ensure!(damaged.trim() == "0", "pages are damaged: {damaged}");
        Ok(())
    }
}

/// The writer at its work. Dropping it ends it.
#[derive(Debug)]
pub struct RowWriter {
    ends: Arc<AtomicBool>,
    committed: Arc<Mutex<Committed>>,
    thread: Option<JoinHandle<()>>,
}

impl RowWriter {
    /// Starts to write rows into the table of this database.
    pub fn start(database: Database) -> Self {
        let (ends, committed) = <(Arc<AtomicBool>, Arc<Mutex<Committed>>)>::default();
        let (told, kept) = (ends.clone(), committed.clone());
        let thread = std::thread::spawn(move || write_rows(&database, &told, &kept));
        Self {
            ends,
            committed,
            thread: Some(thread),
        }
    }

    /// The rows that were confirmed so far.
    pub fn committed(&self) -> Committed {
        self.committed.locked().clone()
    }
}

impl Drop for RowWriter {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic was printed.
            let _ = thread.join();
        }
    }
}

fn write_rows(database: &Database, ends: &AtomicBool, committed: &Mutex<Committed>) {
    let mut next = 0;
    let mut last = Instant::now();
    while !ends.load(Ordering::Relaxed) {
        let Ok(mut connection) = Connection::open(database) else {
            std::thread::sleep(PAUSE);
            continue;
        };
        let mut is_new = true;
        while !ends.load(Ordering::Relaxed) {
            // A row without an answer may be there or not: its number is not used again.
            next += 1;
            if connection.insert(next).is_err() {
                break;
            }
            let mut committed = committed.locked();
            committed.connections += u64::from(std::mem::take(&mut is_new));
            committed.longest_gap = committed.longest_gap.max(last.elapsed());
            committed.rows.push(next);
            last = Instant::now();
        }
        drop(connection);
        std::thread::sleep(PAUSE);
    }
}

/// One `psql`, which ends with its connection.
struct Connection {
    psql: Child,
    statements: ChildStdin,
    answers: Receiver<String>,
}

impl Connection {
    fn open(database: &Database) -> Result<Self> {
        let mut psql = database.psql();
        // It says on its standard error that there is no server, twice a second.
        psql.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut psql = psql.stderr(Stdio::null()).spawn().context("no psql")?;
        let statements = psql.stdin.take().context("it has no standard input")?;
        let output = psql.stdout.take().context("it has no standard output")?;
        let (sender, answers) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Self {
            psql,
            statements,
            answers,
        })
    }

    /// Adds a row, and waits until the server has confirmed it.
    fn insert(&mut self, row: u64) -> Result<()> {
        let statement = format!("INSERT INTO rows VALUES ({row}) RETURNING n;\n");
        self.statements.write_all(statement.as_bytes())?;
        self.statements.flush()?;
        let answer = self.answers.recv_timeout(ANSWER)?;
        ensure!(answer == row.to_string(), "{answer} for {row}");
        Ok(())
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.psql.kill();
        let _ = self.psql.wait();
    }
}
