BEGIN TRANSACTION;
CREATE TABLE amounts (
	name TEXT NOT NULL, 
	value FLOAT NOT NULL, 
	PRIMARY KEY (name)
);
CREATE TABLE audit (
	id INTEGER NOT NULL, 
	at FLOAT NOT NULL, 
	user TEXT NOT NULL, 
	server TEXT NOT NULL, 
	who TEXT NOT NULL, 
	what TEXT NOT NULL, 
	code TEXT NOT NULL, 
	message TEXT NOT NULL, 
	PRIMARY KEY (id)
);
CREATE TABLE checkpoints (
	id TEXT NOT NULL, 
	user TEXT NOT NULL, 
	server TEXT NOT NULL, 
	generation INTEGER NOT NULL, 
	keeping TEXT NOT NULL, 
	info TEXT, 
	changed FLOAT NOT NULL, 
	expires FLOAT, 
	PRIMARY KEY (id)
);
CREATE TABLE deletions (
	id INTEGER NOT NULL, 
	user TEXT NOT NULL, 
	server TEXT NOT NULL, 
	asked FLOAT NOT NULL, 
	incarnations TEXT NOT NULL, 
	spared TEXT NOT NULL, 
	PRIMARY KEY (id)
);
CREATE TABLE keeps (
	id INTEGER NOT NULL, 
	user TEXT NOT NULL, 
	server TEXT NOT NULL, 
	start FLOAT NOT NULL, 
	until FLOAT NOT NULL, 
	PRIMARY KEY (id)
);
CREATE TABLE lease (
	id INTEGER NOT NULL, 
	holder TEXT NOT NULL, 
	term INTEGER NOT NULL, 
	beat INTEGER NOT NULL, 
	seconds FLOAT NOT NULL, 
	place TEXT NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "lease" VALUES(1,'',0,0,0.0,'');
CREATE TABLE marks (
	name TEXT NOT NULL, 
	value FLOAT NOT NULL, 
	PRIMARY KEY (name)
);
CREATE TABLE nap_memory (
	id INTEGER NOT NULL, 
	user TEXT NOT NULL, 
	server TEXT NOT NULL, 
	node TEXT NOT NULL, 
	gpu_name TEXT NOT NULL, 
	bytes FLOAT NOT NULL, 
	begun FLOAT NOT NULL, 
	ended FLOAT, 
	PRIMARY KEY (id)
);
CREATE TABLE owners (
	user TEXT NOT NULL, 
	server TEXT NOT NULL, 
	owner TEXT NOT NULL, 
	since FLOAT NOT NULL, 
	claimed TEXT NOT NULL, 
	PRIMARY KEY (user, server)
);
INSERT INTO "owners" VALUES('ada','','7.20260101T000000000000',1.0,'');
INSERT INTO "owners" VALUES('bob','','*',1.0,'');
INSERT INTO "owners" VALUES('carl','','7.20260101T000000000000',1.0,'*');
INSERT INTO "owners" VALUES('dora','','7.20260101T000000000000',1.0,'9.20260303T000000000000');
INSERT INTO "owners" VALUES('gone','','7.20260101T000000000000',1.0,'');
CREATE TABLE reclaimed (
	id INTEGER NOT NULL, 
	user TEXT NOT NULL, 
	server TEXT NOT NULL, 
	node TEXT NOT NULL, 
	gpu_name TEXT NOT NULL, 
	gpus FLOAT NOT NULL, 
	begun FLOAT NOT NULL, 
	ended FLOAT NOT NULL, 
	PRIMARY KEY (id)
);
CREATE TABLE schema_version (
	version INTEGER NOT NULL, 
	PRIMARY KEY (version)
);
INSERT INTO "schema_version" VALUES(1);
INSERT INTO "schema_version" VALUES(2);
INSERT INTO "schema_version" VALUES(3);
INSERT INTO "schema_version" VALUES(4);
INSERT INTO "schema_version" VALUES(5);
INSERT INTO "schema_version" VALUES(6);
INSERT INTO "schema_version" VALUES(7);
INSERT INTO "schema_version" VALUES(8);
INSERT INTO "schema_version" VALUES(9);
INSERT INTO "schema_version" VALUES(10);
INSERT INTO "schema_version" VALUES(11);
INSERT INTO "schema_version" VALUES(12);
CREATE TABLE sessions (
	user TEXT NOT NULL, 
	server TEXT NOT NULL, 
	phase TEXT NOT NULL, 
	since FLOAT NOT NULL, 
	incarnation TEXT NOT NULL, 
	generation INTEGER NOT NULL, 
	checkpoint TEXT NOT NULL, 
	attempt TEXT NOT NULL, 
	intent TEXT NOT NULL, 
	intent_by TEXT NOT NULL, 
	failure TEXT, 
	failures INTEGER NOT NULL, 
	backoff_until FLOAT, 
	kept_until FLOAT, 
	kept_by TEXT NOT NULL, 
	opted_out_by TEXT NOT NULL, 
	placed BOOLEAN NOT NULL, 
	node TEXT NOT NULL, 
	started_at FLOAT, 
	resumed_at FLOAT, 
	stop_asked FLOAT, 
	gpus INTEGER DEFAULT '0' NOT NULL, 
	gpu_name TEXT DEFAULT '' NOT NULL, 
	waiting_since FLOAT, 
	bring_back TEXT DEFAULT '' NOT NULL, 
	dismissed TEXT DEFAULT '' NOT NULL, 
	own_idle_time FLOAT, 
	session TEXT DEFAULT '' NOT NULL, 
	account TEXT DEFAULT '' NOT NULL, 
	PRIMARY KEY (user, server)
);
INSERT INTO "sessions" VALUES('ada','','suspended',12.5,'i',1,'ckpt-ada','','','',NULL,0,NULL,NULL,'','',0,'',NULL,NULL,NULL,0,'',NULL,'','',NULL,'','');
INSERT INTO "sessions" VALUES('bob','','suspended',12.5,'i',1,'ckpt-bob','','','',NULL,0,NULL,NULL,'','',0,'',NULL,NULL,NULL,0,'',NULL,'','',NULL,'','');
INSERT INTO "sessions" VALUES('carl','','suspended',12.5,'i',1,'ckpt-carl','','','',NULL,0,NULL,NULL,'','',0,'',NULL,NULL,NULL,0,'',NULL,'','',NULL,'','');
INSERT INTO "sessions" VALUES('dora','','suspended',12.5,'i',1,'ckpt-dora','','','',NULL,0,NULL,NULL,'','',0,'',NULL,NULL,NULL,0,'',NULL,'','',NULL,'','8.20260202T000000000000');
INSERT INTO "sessions" VALUES('eve','','suspended',12.5,'i',1,'ckpt-eve','','','',NULL,0,NULL,NULL,'','',0,'',NULL,NULL,NULL,0,'',NULL,'','',NULL,'','');
CREATE TABLE store (
	id INTEGER NOT NULL, 
	store TEXT NOT NULL, 
	word INTEGER NOT NULL, 
	begun BOOLEAN NOT NULL, 
	PRIMARY KEY (id)
);
CREATE TABLE totals (
	at INTEGER NOT NULL, 
	gpus_known INTEGER NOT NULL, 
	gpus_in_use INTEGER NOT NULL, 
	gpus_idle INTEGER NOT NULL, 
	gpus_freed INTEGER NOT NULL, 
	waiting INTEGER NOT NULL, 
	sessions TEXT NOT NULL, 
	PRIMARY KEY (at)
);
CREATE INDEX checkpoints_by_session ON checkpoints (user, server);
CREATE INDEX audit_by_session ON audit (user, server, id);
CREATE INDEX audit_by_user ON audit (user, id);
CREATE INDEX keeps_by_user ON keeps (user, until);
CREATE INDEX deletions_by_session ON deletions (user, server);
CREATE INDEX reclaimed_by_end ON reclaimed (ended);
CREATE INDEX nap_memory_by_end ON nap_memory (ended);
COMMIT;
