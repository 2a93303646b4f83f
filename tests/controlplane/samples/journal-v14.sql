BEGIN TRANSACTION;
CREATE TABLE amounts (
	name TEXT NOT NULL, 
	value FLOAT NOT NULL, 
	PRIMARY KEY (name)
);
INSERT INTO "amounts" VALUES('gpu_seconds_reclaimed',42.5);
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
INSERT INTO "audit" VALUES(1,6.0,'ada@example.org','big one','ada','suspend','c','m');
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
INSERT INTO "checkpoints" VALUES('ckpt-1','ada@example.org','big one',3,'current','{"id":"ckpt-1","key":{"user":"ada@example.org","server":"big one"},"incarnation":"i1","generation":3,"created":5.0,"logical_bytes":7,"stored_bytes":6,"frozen_seconds":0.0,"steps":[]}',4.0,50.0);
INSERT INTO "checkpoints" VALUES('ckpt-7','bob','',4,'doomed','{"id":"ckpt-7","key":{"user":"bob","server":""},"incarnation":"i7","generation":4,"created":5.0,"logical_bytes":7,"stored_bytes":6,"deduplicated_bytes":0,"frozen_seconds":0.0,"steps":[],"parent":"","gpus":[],"session":"s7","account":"8 2026-01-01"}',4.0,9.0);
CREATE TABLE deletions (
	id INTEGER NOT NULL, 
	user TEXT NOT NULL, 
	server TEXT NOT NULL, 
	incarnations TEXT NOT NULL, 
	spared TEXT NOT NULL, 
	term INTEGER DEFAULT '0' NOT NULL, 
	generation INTEGER DEFAULT '0' NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "deletions" VALUES(1,'bob','','["i7"]','["i8"]',0,4);
CREATE TABLE keeps (
	id INTEGER NOT NULL, 
	user TEXT NOT NULL, 
	server TEXT NOT NULL, 
	start FLOAT NOT NULL, 
	until FLOAT NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "keeps" VALUES(1,'ada@example.org','big one',10.0,20.0);
CREATE TABLE lease (
	id INTEGER NOT NULL, 
	holder TEXT NOT NULL, 
	term INTEGER NOT NULL, 
	beat INTEGER NOT NULL, 
	seconds FLOAT NOT NULL, 
	place TEXT NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "lease" VALUES(1,'h1',3,7,15.0,'{"host":"one","boot":"b","pids":1,"pid":2,"start":3}');
CREATE TABLE marks (
	name TEXT NOT NULL, 
	value FLOAT NOT NULL, 
	PRIMARY KEY (name)
);
INSERT INTO "marks" VALUES('trail:notices',1.0);
INSERT INTO "marks" VALUES('highest deleted generation',6.0);
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
INSERT INTO "nap_memory" VALUES(1,'bob','','node1','NVIDIA A100',8000000000.0,12.5,NULL);
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
INSERT INTO "reclaimed" VALUES(1,'ada@example.org','big one','node1','NVIDIA A100',0.5,1.0,7201.0);
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
INSERT INTO "schema_version" VALUES(13);
INSERT INTO "schema_version" VALUES(14);
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
	stop_asked FLOAT, gpus INTEGER DEFAULT '0' NOT NULL, gpu_name TEXT DEFAULT '' NOT NULL, waiting_since FLOAT, bring_back TEXT DEFAULT '' NOT NULL, dismissed TEXT DEFAULT '' NOT NULL, own_idle_time FLOAT, session TEXT DEFAULT '' NOT NULL, account TEXT DEFAULT '' NOT NULL, term INTEGER DEFAULT '0' NOT NULL, claimed BOOLEAN DEFAULT 0 NOT NULL, 
	PRIMARY KEY (user, server)
);
INSERT INTO "sessions" VALUES('bob','','napping',12.5,'i2',0,'','','wake','admin',NULL,0,NULL,NULL,'','',0,'',1.0,NULL,NULL,0,'',NULL,'','',NULL,'','',0,0);
INSERT INTO "sessions" VALUES('ada@example.org','big one','suspended',12.5,'i1',3,'ckpt-1','ckpt-2','resume','admin','{"code":"io_uring","message":"No.","hint":"Do.","retryable":true,"incarnation":"","term":""}',2,99.0,98.0,'ada','grace',1,'node1',1.0,2.0,3.0,2,'NVIDIA A100',7.5,'ckpt-0','ckpt-9',1800.0,'s1','7 2026-01-01',0,0);
CREATE TABLE store (
	id INTEGER NOT NULL, 
	store TEXT NOT NULL, 
	word INTEGER NOT NULL, 
	begun BOOLEAN NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "store" VALUES(1,'55555555555555555555555555555555',1,1);
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
INSERT INTO "totals" VALUES(1700000100,4,1,2,3,1,'{"running":3}');
CREATE INDEX reclaimed_by_end ON reclaimed (ended);
CREATE INDEX checkpoints_by_session ON checkpoints (user, server);
CREATE INDEX audit_by_session ON audit (user, server, id);
CREATE INDEX keeps_by_user ON keeps (user, until);
CREATE INDEX audit_by_user ON audit (user, id);
CREATE INDEX nap_memory_by_end ON nap_memory (ended);
CREATE INDEX deletions_by_session ON deletions (user, server);
COMMIT;
