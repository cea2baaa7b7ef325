// Records every call that changes files below a folder, by LD_PRELOAD, from `record_into` on.
//
// An entry: kind (1 byte), lengths of path, of path or data (4 bytes each), offset (8 bytes), path, data.
// Calls are serialised, so the log has them in the order in which they took effect.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define REAL(name) static __typeof__(&name) real; if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER;
static int log_fd = -1;
static const char* root = "";

static int recording(void) { return log_fd >= 0; }

// Records what changes below `folder` from now on, into the file `path`.
void record_into(const char* folder, const char* path) {
  pthread_mutex_lock(&one);
  int (*plain)(const char*, int, ...) = (int (*)(const char*, int, ...))dlsym(RTLD_NEXT, "open");
  if (log_fd >= 0) close(log_fd);
  root = strdup(folder);
  log_fd = plain(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (log_fd < 0) abort();
  pthread_mutex_unlock(&one);
}

static int inside(const char* path) {
  const size_t n = strlen(root);
  return n && !strncmp(path, root, n) && (path[n] == '/' || !path[n]);
}

// The path of a name relative to an open folder.
static void resolve(int folder, const char* name, char* out) {
  char base[PATH_MAX] = "";
  if (name[0] != '/') {
    if (folder == AT_FDCWD) {
      if (!getcwd(base, sizeof base)) base[0] = 0;
    } else {
      char link[64];
      snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
      const ssize_t n = readlink(link, base, sizeof base - 1);
      base[n > 0 ? n : 0] = 0;
    }
    strncat(base, "/", sizeof base - strlen(base) - 1);
  }
  snprintf(out, PATH_MAX, "%s%s", base, name);
}

static int path_of(int fd, char* out) {
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t n = readlink(link, out, PATH_MAX - 1);
  out[n > 0 ? n : 0] = 0;
  return n > 0 && inside(out);
}

static void entry(char kind, const char* path, const void* data, size_t size, int64_t offset) {
  const uint32_t lengths[2] = {(uint32_t)strlen(path), (uint32_t)size};
  struct iovec parts[5] = {{&kind, 1}, {(void*)lengths, 8}, {&offset, 8}, {(void*)path, lengths[0]}, {(void*)data, size}};
  const int error = errno;
  static __typeof__(&writev) real;
  if (!real) real = (__typeof__(&writev))dlsym(RTLD_NEXT, "writev");
  if (real(log_fd, parts, 5) != (ssize_t)(17 + lengths[0] + size)) abort();
  errno = error;
}

// What the scenario says between its changes.
void record_mark(const char* text) {
  pthread_mutex_lock(&one);
  if (recording()) entry('M', "", text, strlen(text), 0);
  pthread_mutex_unlock(&one);
}

#define BEGIN pthread_mutex_lock(&one); const int on = recording();
#define END(result) pthread_mutex_unlock(&one); return result;

static int opened(int (*call)(int, const char*, int, ...), int folder, const char* name, int flags, mode_t mode) {
  BEGIN
  char path[PATH_MAX] = "";
  struct stat state;
  int is_new = 0;
  if (on && (flags & (O_CREAT | O_TRUNC))) {
    resolve(folder, name, path);
    is_new = lstat(path, &state) != 0;
  }
  const int fd = call(folder, name, flags, mode);
  if (fd >= 0 && path[0] && inside(path)) {
    if (is_new) entry('C', path, "", 0, 0);
    else if (flags & O_TRUNC) entry('T', path, "", 0, 0);
  }
  END(fd)
}

#define MODE mode_t mode = 0; if (flags & (O_CREAT | O_TMPFILE)) { va_list rest; va_start(rest, flags); mode = va_arg(rest, mode_t); va_end(rest); }
#define OPENAT(called, name) \
  int called(const char* path, int flags, ...) { MODE REAL(name); return opened((void*)real, AT_FDCWD, path, flags, mode); }
OPENAT(open, openat)
OPENAT(open64, openat64)
#undef OPENAT
int openat(int folder, const char* path, int flags, ...) { MODE REAL(openat); return opened((void*)real, folder, path, flags, mode); }
int openat64(int folder, const char* path, int flags, ...) { MODE REAL(openat64); return opened((void*)real, folder, path, flags, mode); }

static void wrote(int fd, const void* data, ssize_t size, int64_t offset) {
  char path[PATH_MAX];
  if (size > 0 && path_of(fd, path)) entry('W', path, data, (size_t)size, offset);
}

ssize_t write(int fd, const void* data, size_t size) {
  REAL(write);
  BEGIN
  const ssize_t done = real(fd, data, size);
  char path[PATH_MAX];
  if (on && done > 0 && path_of(fd, path)) wrote(fd, data, done, lseek(fd, 0, SEEK_CUR) - done);
  END(done)
}

ssize_t pwrite(int fd, const void* data, size_t size, off_t offset) {
  REAL(pwrite);
  BEGIN
  const ssize_t done = real(fd, data, size, offset);
  if (on) wrote(fd, data, done, offset);
  END(done)
}

ssize_t pwrite64(int fd, const void* data, size_t size, off64_t offset) {
  REAL(pwrite64);
  BEGIN
  const ssize_t done = real(fd, data, size, offset);
  if (on) wrote(fd, data, done, offset);
  END(done)
}

ssize_t writev(int fd, const struct iovec* parts, int count) {
  REAL(writev);
  BEGIN
  const ssize_t done = real(fd, parts, count);
  char path[PATH_MAX];
  if (on && done > 0 && path_of(fd, path)) {
    int64_t offset = lseek(fd, 0, SEEK_CUR) - done;
    ssize_t left = done;
    for (int k = 0; k < count && left > 0; ++k) {
      const ssize_t n = left < (ssize_t)parts[k].iov_len ? left : (ssize_t)parts[k].iov_len;
      wrote(fd, parts[k].iov_base, n, offset);
      offset += n;
      left -= n;
    }
  }
  END(done)
}

// Copies within the kernel are refused: callers then read and write.
ssize_t sendfile(int out, int in, off_t* offset, size_t count) { errno = EINVAL; return -1; }
ssize_t sendfile64(int out, int in, off64_t* offset, size_t count) { errno = EINVAL; return -1; }
ssize_t copy_file_range(int in, off64_t* from, int out, off64_t* to, size_t n, unsigned flags) { errno = EXDEV; return -1; }

#define SIZED(name, type) \
  int name(int fd, type size) { \
    REAL(name); BEGIN const int result = real(fd, size); char path[PATH_MAX]; \
    if (on && !result && path_of(fd, path)) entry('T', path, "", 0, size); \
    END(result) }
SIZED(ftruncate, off_t)
SIZED(ftruncate64, off64_t)

#define SYNC(name) \
  int name(int fd) { \
    REAL(name); BEGIN const int result = real(fd); char path[PATH_MAX]; \
    if (on && !result && path_of(fd, path)) entry('S', path, "", 0, 0); \
    END(result) }
SYNC(fsync)
SYNC(fdatasync)

// What was written to a mapped file, of which nothing is seen before: all of the part that is synced.
int msync(void* begin, size_t size, int flags) {
  REAL(msync);
  BEGIN
  const int result = real(begin, size, flags);
  FILE* const maps = on && !result ? fopen("/proc/self/maps", "re") : NULL;
  char line[PATH_MAX + 100], path[PATH_MAX];
  while (maps && fgets(line, sizeof line, maps)) {
    unsigned long first, end, offset;
    struct stat state;
    if (sscanf(line, "%lx-%lx %*s %lx %*s %*s %[^\n]", &first, &end, &offset, path) != 4) continue;
    if ((unsigned long)begin < first || (unsigned long)begin >= end || !inside(path) || stat(path, &state)) continue;
    const int64_t place = (int64_t)(offset + ((unsigned long)begin - first)), left = state.st_size - place;
    if (left > 0) entry('W', path, begin, left < (int64_t)size ? (size_t)left : size, place);
    entry('S', path, "", 0, 0);
  }
  if (maps) fclose(maps);
  END(result)
}

static int two(char kind, int (*call)(int, const char*, int, const char*), int a, const char* from, int b, const char* to) {
  BEGIN
  char old[PATH_MAX], new[PATH_MAX];
  if (on) { resolve(a, from, old); resolve(b, to, new); }
  const int result = call(a, from, b, to);
  if (on && !result && inside(new)) entry(kind, old, new, strlen(new), 0);
  END(result)
}

int renameat(int a, const char* from, int b, const char* to) { REAL(renameat); return two('R', real, a, from, b, to); }
int rename(const char* from, const char* to) { REAL(renameat); return two('R', real, AT_FDCWD, from, AT_FDCWD, to); }
static int plain_link(int a, const char* from, int b, const char* to) { REAL(linkat); return real(a, from, b, to, 0); }
int link(const char* from, const char* to) { return two('L', plain_link, AT_FDCWD, from, AT_FDCWD, to); }
int linkat(int a, const char* from, int b, const char* to, int flags) { return two('L', plain_link, a, from, b, to); }

static int removed(int folder, const char* name, int flags) {
  REAL(unlinkat);
  BEGIN
  char path[PATH_MAX] = "";
  if (on) resolve(folder, name, path);
  const int result = real(folder, name, flags);
  if (on && !result && inside(path)) entry('U', path, "", 0, 0);
  END(result)
}

int unlinkat(int folder, const char* name, int flags) { return removed(folder, name, flags); }
int unlink(const char* name) { return removed(AT_FDCWD, name, 0); }
int rmdir(const char* name) { return removed(AT_FDCWD, name, AT_REMOVEDIR); }
int remove(const char* name) { return unlink(name) && errno == EISDIR ? rmdir(name) : 0; }

static int made(int folder, const char* name, mode_t mode) {
  REAL(mkdirat);
  BEGIN
  const int result = real(folder, name, mode);
  char path[PATH_MAX];
  if (on && !result) {
    resolve(folder, name, path);
    if (inside(path)) entry('D', path, "", 0, 0);
  }
  END(result)
}

int mkdirat(int folder, const char* name, mode_t mode) { return made(folder, name, mode); }
int mkdir(const char* name, mode_t mode) { return made(AT_FDCWD, name, mode); }
