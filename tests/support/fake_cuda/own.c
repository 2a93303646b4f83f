/* The driver's own thread in a program with a false card, as user.py and cell.py run it.

   It does not need Python's lock: the agent holds all other threads while it moves
   memory, and one of them may have it. */

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static void write_new(const char *path, const char *text) {
    char own[512];
    snprintf(own, sizeof own, "%s.own", path);
    FILE *file = fopen(own, "w");
    if (!file) return;
    fputs(text, file);
    fclose(file);
    rename(own, path);
}

static void pause_for(double seconds) {
    struct timespec left = {(time_t)seconds, (long)(1e9 * (seconds - (time_t)seconds))};
    while (nanosleep(&left, &left) && errno == EINTR) {}
}

/* Closes the device when the state becomes 2, opens it when it becomes 1 again, each
   after so many seconds, and says so in "<state>.done". -1 in held: it is away. */
void drive(const char *state, const char *device, int *held, double seconds) {
    char done[512], text[64];
    snprintf(done, sizeof done, "%s.done", state);
    snprintf(text, sizeof text, "0 %ld", (long)syscall(SYS_gettid));
    write_new(state, text);
    for (;;) {
        int wanted = -1;
        FILE *file = fopen(state, "r");
        if (file) {
            if (fscanf(file, "%d", &wanted) != 1) wanted = -1;
            fclose(file);
        }
        if (wanted == 2 && *held >= 0) {
            close(*held);
            *held = -1;
            pause_for(seconds);
            write_new(done, "2");
        } else if (wanted == 1 && *held < 0) {
            pause_for(seconds);
            *held = open(device, O_RDWR | O_CLOEXEC);
            write_new(done, "1");
        }
        pause_for(0.002);
    }
}
