//! A machine whose processes are simulated, for tests and for sizing a broker.

use vramscope_collector::Process;
use vramscope_insight::fleet::{Acknowledged, Summary};

use crate::address::FleetAddress;
use crate::connection::{Connection, FleetError};
use crate::process_record::{Details, ProcessRecord};
use crate::summaries::SummarySender;
use crate::summary_batch::SummaryBatch;
use crate::{streams, subjects};

/// A connection to a broker that sends the summaries of several simulated processes of one machine.
///
/// It sends the messages that real processes send, over a real connection; only the figures in them
/// are invented.
#[derive(Debug)]
pub struct SimulatedHost {
    address: FleetAddress,
    connection: Connection,
    processes: Vec<Process>,
    sender: SummarySender,
}

impl SimulatedHost {
    /// Connects to the broker and stores the descriptions of the processes, with this mesh. The
    /// first process is the sender of all summaries.
    ///
    /// # Errors
    /// If the broker cannot be reached or refuses a message.
    ///
    /// # Panics
    /// If there are no processes.
    pub async fn connect(address: FleetAddress, processes: Vec<Process>, mesh: &str) -> Result<Self, FleetError> {
        let connection = Connection::open(&address, "vramscope simulation").await?;
        let sender = SummarySender::new(connection.clone(), address.run(), &processes[0]);
        let host = Self { address, connection, processes, sender };
        streams::ensure(&host.connection, host.address.run()).await.map_err(|reason| host.error(reason))?;
        for process in &host.processes {
            let subject = subjects::process(host.address.run(), process.rank, &process.identity);
            let details = Details { mesh: mesh.to_owned(), ..Details::new(host.address.mode) };
            let record = ProcessRecord { process: process.clone(), details };
            let stored = host.connection.jetstream.publish(subject, record.to_json().into()).await;
            stored.map_err(|error| host.error(error))?.await.map_err(|error| host.error(error))?;
        }
        Ok(host)
    }

    fn error(&self, reason: impl std::fmt::Display) -> FleetError {
        FleetError::new(&self.address, reason)
    }

    /// Returns when the newest acknowledged batch was acknowledged.
    #[must_use]
    pub fn acknowledged(&self) -> Option<Acknowledged> {
        self.sender.acknowledged()
    }

    /// Sends one summary of each process, in the order of the processes, as one message. Returns
    /// false, and sends nothing, while the broker cannot be reached.
    pub async fn send(&self, number: u64, summaries: Vec<Summary>) -> bool {
        let identities =
            std::iter::once(String::new()).chain(self.processes.iter().skip(1).map(|process| process.identity.clone()));
        let batch = SummaryBatch { summaries: identities.zip(summaries).collect() };
        self.sender.send(number, &batch).await
    }

    /// Waits until the broker has received everything that was sent.
    pub async fn finish(self) {
        // An error means that the connection is lost, which also ends the wait.
        let _ = self.connection.client.flush().await;
    }
}
