//! Stands between a program and an HTTP server, and makes the server slow,
//! refusing or gone, request by request.
//!
//! It knows of HTTP what it needs to count requests: one a connection, with a
//! length. Everything that it did is on record, so that a test can assert that
//! its fault struck.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// Bytes that are passed on at once.
const PIECE_BYTES: usize = 16 << 10;

/// Longest head of a request.
const MAX_HEAD_BYTES: usize = 64 << 10;

/// Longest wait for either side.
const TIMEOUT: Duration = Duration::from_secs(60);

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It went to the server, and the answer came back.
    Passed,
    /// It was answered "503 Slow Down", and never reached the server.
    Refused,
    /// The connection was cut in the middle of it.
    CutRequest,
    /// It reached the server, and the connection was cut in place of the
    /// answer.
    CutAnswer,
}

/// A fault: it strikes so many of the requests that hold its words.
#[derive(Debug, Clone)]
pub struct Fault {
    /// What strikes.
    pub fate: Fate,
    /// How often yet.
    pub times: u32,
    /// Words that `METHOD target` holds; empty: every request.
    pub words: &'static str,
}

/// Called before a request is passed on, with `METHOD target`.
type Hook = Box<dyn Fn(&str) + Send>;

#[derive(Default)]
struct State {
    bytes_per_second: Option<u64>,
    faults: Vec<Fault>,
    hook: Option<Hook>,
    /// `METHOD target` of requests whose body is being passed on, with the
    /// bytes that went through.
    passing: Vec<(String, usize)>,
    seen: Vec<(String, Fate)>,
    /// From the first request with these words on, bodies pass at this speed.
    slow_from: Option<(&'static str, u64)>,
}

fn holds(line: &str, words: &str) -> bool {
    words.split_whitespace().all(|word| line.contains(word))
}

/// A running proxy; its thread ends with the test.
#[derive(Clone)]
pub struct Proxy {
    /// Where it listens.
    pub address: SocketAddr,
    state: Arc<Mutex<State>>,
}

impl Proxy {
    /// Listens on a free port, in front of a server.
    ///
    /// # Panics
    /// When no port can be had.
    #[must_use]
    pub fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("a bound port has an address");
        let proxy = Self { address, state: Arc::default() };
        let own = proxy.clone();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let proxy = own.clone();
                // An error here is a connection that one side gave up, as a
                // killed program does.
                thread::spawn(move || proxy.serve(client, server));
            }
        });
        proxy
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Address for the environment.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Adds a fault.
    pub fn strike(&self, fate: Fate, times: u32, words: &'static str) {
        self.state().faults.push(Fault { fate, times, words });
    }

    /// Passes bodies of requests on at this speed; none: as fast as it can.
    pub fn limit(&self, bytes_per_second: Option<u64>) {
        self.state().bytes_per_second = bytes_per_second;
    }

    /// As [`Self::limit`], from the first request with these words on.
    pub fn limit_from(&self, words: &'static str, bytes_per_second: u64) {
        self.state().slow_from = Some((words, bytes_per_second));
    }

    /// No fault, no limit from here on.
    pub fn heal(&self) {
        let mut state = self.state();
        state.faults.clear();
        state.bytes_per_second = None;
        state.slow_from = None;
    }

    /// Calls this before each request that is passed on.
    pub fn before_each(&self, hook: impl Fn(&str) + Send + 'static) {
        self.state().hook = Some(Box::new(hook));
    }

    /// How many requests with these words met this fate.
    #[must_use]
    pub fn count(&self, fate: Fate, words: &str) -> usize {
        self.state().seen.iter().filter(|(line, known)| *known == fate && holds(line, words)).count()
    }

    /// Whether the body of a request with these words is half-way through.
    #[must_use]
    pub fn is_passing(&self, words: &str) -> bool {
        let state = self.state();
        state.passing.iter().any(|(line, num_bytes)| *num_bytes > 0 && holds(line, words))
    }

    fn fate(&self, line: &str) -> Fate {
        let mut state = self.state();
        if let Some((words, bytes_per_second)) = state.slow_from
            && holds(line, words)
        {
            state.bytes_per_second = Some(bytes_per_second);
        }
        let fault = state.faults.iter_mut().find(|fault| fault.times > 0 && holds(line, fault.words));
        let fate = match fault {
            Some(fault) => {
                fault.times -= 1;
                fault.fate
            }
            None => Fate::Passed,
        };
        state.seen.push((line.to_owned(), fate));
        fate
    }

    fn serve(&self, mut client: TcpStream, server: SocketAddr) -> std::io::Result<()> {
        client.set_read_timeout(Some(TIMEOUT))?;
        let Some((head, begun)) = read_head(&mut client)? else { return Ok(()) };
        let line = head.lines().next().unwrap_or_default();
        let line = line.rsplit_once(' ').map_or(line, |(line, _)| line).to_owned();
        let length = content_length(&head);
        match self.fate(&line) {
            Fate::Refused => {
                drain(&mut client, length.saturating_sub(begun.len()))?;
                refuse(&mut client)
            }
            Fate::CutRequest => {
                drain(&mut client, length.saturating_sub(begun.len()) / 2)?;
                client.shutdown(Shutdown::Both)
            }
            fate => {
                let state = self.state();
                if let Some(hook) = &state.hook {
                    hook(&line);
                }
                drop(state);
                let answer = self.pass(&mut client, server, (&line, &head), &begun, length)?;
                if fate == Fate::CutAnswer {
                    return client.shutdown(Shutdown::Both);
                }
                client.write_all(&answer)?;
                client.shutdown(Shutdown::Write)
            }
        }
    }

    /// Passes a request on, and gives the whole answer.
    fn pass(
        &self,
        client: &mut TcpStream,
        server: SocketAddr,
        (line, head): (&str, &str),
        begun: &[u8],
        length: usize,
    ) -> std::io::Result<Vec<u8>> {
        let mut upstream = TcpStream::connect(server)?;
        upstream.set_read_timeout(Some(TIMEOUT))?;
        upstream.write_all(closing(head.as_bytes()).as_slice())?;
        upstream.write_all(begun)?;
        self.state().passing.push((line.to_owned(), begun.len()));
        let passed = self.pass_body(client, &mut upstream, line, length.saturating_sub(begun.len()));
        self.state().passing.retain(|(known, _)| known != line);
        passed?;
        let mut answer = Vec::new();
        upstream.read_to_end(&mut answer)?;
        Ok(closing(&answer))
    }

    fn pass_body(
        &self,
        client: &mut TcpStream,
        upstream: &mut TcpStream,
        line: &str,
        mut left: usize,
    ) -> std::io::Result<()> {
        let mut piece = vec![0; PIECE_BYTES];
        while left > 0 {
            let wanted = left.min(PIECE_BYTES);
            let num_read = client.read(&mut piece[..wanted])?;
            if num_read == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            upstream.write_all(&piece[..num_read])?;
            left -= num_read;
            let mut state = self.state();
            if let Some((_, num_bytes)) = state.passing.iter_mut().find(|(known, _)| known == line) {
                *num_bytes += num_read;
            }
            let bytes_per_second = state.bytes_per_second;
            drop(state);
            if let Some(bytes_per_second) = bytes_per_second {
                thread::sleep(Duration::from_micros(num_read as u64 * 1_000_000 / bytes_per_second));
            }
        }
        Ok(())
    }
}

/// The head of a request, and what of its body came with it; none where the
/// connection was opened for nothing.
fn read_head(client: &mut TcpStream) -> std::io::Result<Option<(String, Vec<u8>)>> {
    let mut bytes = Vec::new();
    let mut piece = [0; 4096];
    loop {
        let num_read = client.read(&mut piece)?;
        if num_read == 0 || bytes.len() > MAX_HEAD_BYTES {
            return Ok(None);
        }
        bytes.extend_from_slice(&piece[..num_read]);
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            let body = bytes.split_off(end + 4);
            return Ok(Some((String::from_utf8_lossy(&bytes).into_owned(), body)));
        }
    }
}

fn content_length(head: &str) -> usize {
    let fields = head.lines().filter_map(|line| line.split_once(':'));
    let length = fields.into_iter().find(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    length.and_then(|(_, value)| value.trim().parse().ok()).unwrap_or(0)
}

/// A message that says that its connection carries no other.
fn closing(message: &[u8]) -> Vec<u8> {
    let end = message.windows(2).position(|two| two == b"\r\n").map_or(0, |end| end + 2);
    [&message[..end], b"Connection: close\r\n".as_slice(), &message[end..]].concat()
}

fn drain(client: &mut TcpStream, mut left: usize) -> std::io::Result<()> {
    let mut piece = vec![0; PIECE_BYTES];
    while left > 0 {
        let wanted = left.min(PIECE_BYTES);
        match client.read(&mut piece[..wanted])? {
            0 => return Ok(()),
            num_read => left -= num_read,
        }
    }
    Ok(())
}

fn refuse(client: &mut TcpStream) -> std::io::Result<()> {
    let body = "<?xml version=\"1.0\"?><Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>";
    let answer = format!(
        "HTTP/1.1 503 Slow Down\r\nContent-Type: application/xml\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    client.write_all(answer.as_bytes())?;
    client.shutdown(Shutdown::Write)
}
