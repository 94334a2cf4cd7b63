"""A database's transactions: how one begins, and whether it is still the one that a unit of work began."""

from sqlalchemy import Connection

from dualwrite.coordinator.rules.transaction_statements import STANDARD, TransactionGrammar
from dualwrite.coordinator.sql.dialects.unit_transactions import Fate, TransactionEndedError
from dualwrite.errors import ConfigurationError


class DatabaseTransactions:
    """The part of Database that concerns transactions of units of work."""

    grammar: TransactionGrammar = STANDARD
    """Statements that end or begin a transaction, which a unit of work refuses. Override it if some commit
    implicitly, or if comments have another syntax."""

    def make_durable(self, connection: Connection) -> None:
        """Let a crash of the machine undo no COMMIT on ``connection``, where no transaction has begun. Override it if
        that takes a setting of the connection whose default is too weak. A weaker one that the user has chosen stays.
        """

    def begin(self, connection: Connection) -> None:
        """Make sure that ``connection``, whose SQLAlchemy transaction has begun, is in one of the database's own.

        :raises ConfigurationError: if the driver is in autocommit mode: no two statements would be one transaction.
        """
        if self.autocommits(connection):
            raise ConfigurationError(
                "the database engine is in AUTOCOMMIT: a dual write needs its transactions; remove it"
            )

    def autocommits(self, connection: Connection) -> bool:
        """True if the driver commits each statement on ``connection`` by itself."""
        return getattr(connection.connection.dbapi_connection, "autocommit", False) is True

    def is_in_transaction(self, connection: Connection) -> bool | None:
        """True if a transaction is open on ``connection``, as its driver knows without a request to the server. None,
        unless overridden: the driver does not know."""
        return None

    def is_over(self, connection: Connection) -> bool:
        """True if the driver knows, without a request, that a COMMIT on ``connection`` would commit nothing."""
        return self.is_in_transaction(connection) is False

    def begin_unit(self, connection: Connection) -> None:
        """Prepare the transaction of a unit of work after :meth:`begin`, for :meth:`fate`. Override both, unless only
        the library can end a transaction."""

    def store_values(self, connection: Connection) -> dict[str, object]:
        """Values of the parameters in :meth:`Database.store_conditions`."""
        return {}

    def require_unit(self, connection: Connection, mark: str, *, storing: bool) -> None:
        """Require that a COMMIT would still commit the transaction of :meth:`begin_unit`. Call it once.

        :param mark: the unit's name, from :func:`unit_mark`.
        :param storing: True if the statement that stores the state comes next. Where it can, that statement makes the
            check.
        :raises TransactionEndedError: if the transaction has ended.
        :raises InvalidTransactionStateError: if it can only be rolled back.
        """
        fate = self.fate(connection, mark)
        if fate is not Fate.OPEN:
            raise TransactionEndedError(self.ended, fate)

    def fate(self, connection: Connection, mark: str) -> Fate:
        """How the transaction of :meth:`begin_unit` ended. Call it once, and then roll back an open transaction."""
        return Fate.OPEN

    ended = "the database transaction of this unit of work was ended inside its block"
    """The message of :meth:`require_unit`."""

    def reads_a_snapshot(self, connection: Connection) -> bool:
        """True if a transaction cannot write a row that another has committed since this one began to read."""
        return False

    def find_by_key(self, connection: Connection, *, on: bool) -> None:
        """Let the statements that follow find rows by their key even in a small table. Override it where a scan of the
        table would do harm, for example by its locks."""

    def take_turn(self, connection: Connection, name: str, *, shared: bool) -> None:
        """Wait for the earlier turns of ``name``, and keep the turn until the transaction ends.

        Call it before locking a row whose lock is shared all the time: new sharers would overtake a transaction that
        needs the row alone.

        :param shared: True if other shared turns may be held at the same time.
        """

    def rolls_back(self, connection: Connection, error: BaseException) -> bool:
        """True if ``error``, the driver's own, is known to have rolled back the transaction of ``connection``."""
        return False
