// data_image.cc: images from files (digits, CIFAR-10, the MNIST family) and from a generator.
// SPDX-License-Identifier: Apache-2.0
#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include "apps/train/data_kinds.h"
#include "apps/train/data_order.h"
#include "thinwire/core/error.h"

namespace thinwire::train {
namespace {

namespace fs = std::filesystem;

enum class Part { train, test };

// How a training image is augmented: moved by at most `margin` pixels each way, mirrored or not.
struct View {
  std::int64_t down = 0, right = 0;
  bool mirrored = false;
};
constexpr std::int64_t margin = 4;

View draw_view(const Draw& draw, std::int64_t position) {
  const std::uint64_t key = random_at(stream_key(draw.seed, Stream::augmentation), draw.step);
  const std::uint64_t bits = random_at(
      key, static_cast<std::uint64_t>(draw.rank) << 32 | static_cast<std::uint64_t>(position));
  constexpr std::uint64_t places = 2 * margin + 1;
  return {static_cast<std::int64_t>((bits & 0xffff) % places) - margin,
          static_cast<std::int64_t>((bits >> 16 & 0xffff) % places) - margin, (bits >> 63) != 0};
}

// Batches of images that can be counted, named and written one by one.
class ImageData : public Data {
 public:
  ImageData(const Problem& problem, bool augmented) : problem_(problem), augmented_(augmented) {}

  Problem problem() const override { return problem_; }
  std::int64_t train_examples() const override { return count(Part::train); }

  std::vector<std::int64_t> train_classes() const override {
    std::vector<std::int64_t> classes(static_cast<std::size_t>(count(Part::train)));
    for (std::size_t i = 0; i < classes.size(); ++i)
      classes[i] = label(Part::train, static_cast<std::int64_t>(i));
    return classes;
  }

  Batch train_batch_of(const std::vector<std::int64_t>& examples, const Draw& draw) const override {
    return gather(Part::train, examples, [&](std::int64_t position) {
      return augmented_ ? draw_view(draw, position) : View{};
    });
  }

  std::int64_t test_batches(std::int64_t batch) const override {
    return count_batches(count(Part::test), batch);
  }

  Batch test_batch(std::int64_t index, std::int64_t batch) const override {
    const Range range = batch_range(count(Part::test), index, batch);
    std::vector<std::int64_t> chosen(static_cast<std::size_t>(range.count));
    std::iota(chosen.begin(), chosen.end(), range.first);
    return gather(Part::test, chosen, [](std::int64_t) { return View{}; });
  }

 protected:
  std::int64_t pixels() const { return problem_.channels * problem_.height * problem_.width; }

 private:
  virtual std::int64_t count(Part part) const = 0;
  virtual std::int64_t label(Part part, std::int64_t example) const = 0;
  virtual void write(Part part, std::int64_t example, const View& view, float* out) const = 0;

  template <typename ViewOf>
  Batch gather(Part part, const std::vector<std::int64_t>& chosen, ViewOf view_of) const {
    const auto size = static_cast<std::int64_t>(chosen.size());
    Batch batch{torch::empty({size, problem_.channels, problem_.height, problem_.width}),
                torch::empty({size}, torch::kInt64)};
    auto* const images = batch.input.data_ptr<float>();
    auto* const labels = batch.target.data_ptr<std::int64_t>();
    at::parallel_for(0, size, 8, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t i = first; i < last; ++i) {
        const std::int64_t example = chosen[static_cast<std::size_t>(i)];
        labels[i] = label(part, example);
        write(part, example, view_of(i), images + i * pixels());
      }
    });
    return batch;
  }

  Problem problem_;
  bool augmented_;
};

// Images of bytes, one after another, and their classes.
struct ImageSet {
  std::vector<std::uint8_t> pixels;
  std::vector<std::uint8_t> labels;
};

using Levels = std::array<float, 256>;

// Maps each byte to its normalized value: the training images have mean 0 and variance 1 in every
// channel. The sums are integers, so every machine gets the same result.
Levels normal_levels(const std::array<std::uint64_t, 256>& histogram) {
  double count = 0, sum = 0, squares = 0;
  for (std::size_t value = 0; value < histogram.size(); ++value) {
    const auto times = static_cast<double>(histogram[value]);
    const auto level = static_cast<double>(value);
    count += times;
    sum += times * level;
    squares += times * level * level;
  }
  const double mean = sum / count;
  const double deviation = std::sqrt(squares / count - mean * mean);
  Levels levels{};
  for (std::size_t value = 0; value < levels.size(); ++value) {
    const double distance = static_cast<double>(value) - mean;
    levels[value] = static_cast<float>(deviation > 0 ? distance / deviation : distance);
  }
  return levels;
}

class StoredImages : public ImageData {
 public:
  StoredImages(const Problem& problem, ImageSet train, ImageSet test, bool augmented)
      : ImageData(problem, augmented), train_(std::move(train)), test_(std::move(test)) {
    const auto plane = static_cast<std::size_t>(problem.height * problem.width);
    const auto channels = static_cast<std::size_t>(problem.channels);
    std::vector<std::array<std::uint64_t, 256>> histograms(channels);
    for (std::size_t at = 0; at < train_.pixels.size(); at += plane) {
      auto& histogram = histograms[at / plane % channels];
      for (std::size_t i = at; i < at + plane; ++i) ++histogram[train_.pixels[i]];
    }
    for (const auto& histogram : histograms) levels_.push_back(normal_levels(histogram));
  }

 private:
  const ImageSet& set(Part part) const { return part == Part::train ? train_ : test_; }

  std::int64_t count(Part part) const override {
    return static_cast<std::int64_t>(set(part).labels.size());
  }

  std::int64_t label(Part part, std::int64_t example) const override {
    return set(part).labels[static_cast<std::size_t>(example)];
  }

  void write(Part part, std::int64_t example, const View& view, float* out) const override {
    const Problem shape = problem();
    const std::uint8_t* plane = set(part).pixels.data() + example * pixels();
    for (const Levels& levels : levels_) {
      for (std::int64_t y = 0; y < shape.height; ++y, out += shape.width) {
        write_row(plane, y + view.down, view, levels, out);
      }
      plane += shape.height * shape.width;
    }
  }

  // Pixels outside the image are black.
  void write_row(const std::uint8_t* plane, std::int64_t y, const View& view, const Levels& levels,
                 float* out) const {
    const Problem shape = problem();
    const bool row_inside = y >= 0 && y < shape.height;
    for (std::int64_t i = 0; i < shape.width; ++i) {
      const std::int64_t x = (view.mirrored ? shape.width - 1 - i : i) + view.right;
      const bool inside = row_inside && x >= 0 && x < shape.width;
      out[i] = levels[inside ? plane[y * shape.width + x] : 0];
    }
  }

  ImageSet train_, test_;
  std::vector<Levels> levels_;
};

// ---- digits

constexpr std::size_t digit_images = 1797, digit_pixels = 64;

void read_digit(std::string_view line, const std::string& where, ImageSet& out) {
  std::array<int, digit_pixels + 1> numbers{};
  const char* at = line.data();
  const char* const end = at + line.size();
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const auto [next, error] = std::from_chars(at, end, numbers[i]);
    if (error != std::errc{}) {
      fail(where, ": expected 64 pixels and a label, got ", i, " numbers; ",
           "remove the file and run `make setup`");
    }
    const int highest = i < digit_pixels ? 16 : 9;
    if (numbers[i] < 0 || numbers[i] > highest) {
      fail(where, ", number ", i + 1, ": expected 0 to ", highest, ", got ", numbers[i],
           "; remove the file and run `make setup`");
    }
    at = next != end && *next == ',' ? next + 1 : next;
  }
  for (std::size_t i = 0; i < digit_pixels; ++i) {
    out.pixels.push_back(static_cast<std::uint8_t>(numbers[i]));
  }
  out.labels.push_back(static_cast<std::uint8_t>(numbers.back()));
}

std::string digits_path() {
  if (const char* chosen = std::getenv("THINWIRE_DIGITS")) return chosen;
  const std::string here = "data/digits.csv";
  return fs::exists(here) ? here : THINWIRE_SOURCE_DIR "/" + here;
}

ImageSet read_digits(const std::string& path) {
  const std::string content =
      read_file(path, "`make setup` writes data/digits.csv; THINWIRE_DIGITS names another file");
  ImageSet images;
  std::size_t number = 0;
  for (std::string_view rest = content; !rest.empty();) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    read_digit(line, "'" + path + "', line " + std::to_string(++number), images);
  }
  if (images.labels.size() != digit_images) {
    fail("'", path, "' has ", images.labels.size(), " images, expected ", digit_images,
         "; remove it and run `make setup`");
  }
  return images;
}

// The split of examples/mpi_digits: one fifth for the test, after a fixed shuffle, because the file
// is sorted by writer.
std::vector<std::size_t> digit_order() {
  std::vector<std::size_t> order(digit_images);
  std::iota(order.begin(), order.end(), std::size_t{0});
  for (std::size_t i = order.size(); i > 1; --i) {
    std::swap(order[i - 1], order[random_below(1797, i, static_cast<std::uint32_t>(i))]);
  }
  return order;
}

ImageSet take(const ImageSet& all, std::span<const std::size_t> rows, std::size_t pixels) {
  ImageSet taken;
  for (const std::size_t row : rows) {
    const auto image = std::span(all.pixels).subspan(row * pixels, pixels);
    taken.pixels.insert(taken.pixels.end(), image.begin(), image.end());
    taken.labels.push_back(all.labels[row]);
  }
  return taken;
}

// ---- files of bytes

std::string existing_directory(const std::string& directory, const std::string& advice) {
  if (!fs::exists(directory)) fail("directory '", directory, "' does not exist; ", advice);
  if (!fs::is_directory(directory)) fail("'", directory, "' is not a directory; ", advice);
  return directory;
}

// ---- CIFAR-10

constexpr std::size_t cifar_pixels = std::size_t{3} * 32 * 32, cifar_record = cifar_pixels + 1;
constexpr const char* cifar_advice =
    "unpack cifar-10-binary.tar.gz from https://www.cs.toronto.edu/~kriz/cifar.html there";

// A record is a label and three planes of 32x32.
void read_cifar(const std::string& path, ImageSet& out) {
  const std::string content = read_file(path, cifar_advice);
  if (content.empty() || content.size() % cifar_record != 0) {
    fail("'", path, "' has ", content.size(), " bytes, expected a multiple of ", cifar_record,
         " (a label and 3x32x32 pixels); it is truncated or not CIFAR-10: ", cifar_advice);
  }
  for (std::size_t at = 0; at < content.size(); at += cifar_record) {
    const auto label = static_cast<std::uint8_t>(content[at]);
    if (label > 9) {
      fail("'", path, "', record ", at / cifar_record, ": expected a label from 0 to 9, got ",
           static_cast<int>(label), "; it is not CIFAR-10: ", cifar_advice);
    }
    out.labels.push_back(label);
    const auto* first = content.data() + at + 1;
    out.pixels.insert(out.pixels.end(), first, first + cifar_pixels);
  }
}

// ---- the MNIST family

struct IdxFile {
  std::string path;
  std::vector<std::uint32_t> sizes;
  std::vector<std::uint8_t> values;
};

// "train-images-idx3-ubyte", or "train-images.idx3-ubyte" as some archives spell it.
std::string idx_path(const std::string& directory, const std::string& name, int dimensions) {
  const std::string end = "idx" + std::to_string(dimensions) + "-ubyte";
  std::string path = directory + "/" + name + "-" + end;
  std::string other = directory + "/" + name + "." + end;
  if (!fs::exists(path) && fs::exists(other)) return other;
  if (!fs::exists(path) && (fs::exists(path + ".gz") || fs::exists(other + ".gz"))) {
    fail("'", path, "' is still compressed; run `gunzip ", directory, "/*.gz`");
  }
  return path;
}

std::uint32_t big_endian(const std::string& bytes, std::size_t at) {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < 4; ++i) value = value << 8 | static_cast<std::uint8_t>(bytes[at + i]);
  return value;
}

// A magic number (0x08 for bytes, then the number of dimensions), the size of each dimension, and
// the values.
IdxFile read_idx(const std::string& directory, const std::string& name, std::uint32_t dimensions) {
  IdxFile file{idx_path(directory, name, static_cast<int>(dimensions)), {}, {}};
  const std::string content =
      read_file(file.path, "put the four uncompressed files of MNIST or Fashion-MNIST there");
  const std::size_t header = 4 + 4 * std::size_t{dimensions};
  if (content.size() < header) {
    fail("'", file.path, "' has ", content.size(), " bytes, expected a header of ", header,
         "; it is truncated, download it again");
  }
  if (const std::uint32_t magic = big_endian(content, 0); magic != (0x800 | dimensions)) {
    fail("'", file.path, "' begins with the number ", magic, ", expected ", 0x800 | dimensions,
         " (idx", dimensions, ", bytes); it is another kind of file, or still compressed");
  }
  std::size_t left = content.size() - header;
  bool complete = true;
  std::size_t expected = 1;
  for (std::size_t i = 0; i < dimensions; ++i) {
    file.sizes.push_back(big_endian(content, 4 + 4 * i));
    // Bounded by the content before the next factor, so the product cannot wrap.
    complete = complete && file.sizes[i] > 0 && expected <= left / file.sizes[i];
    expected *= complete ? file.sizes[i] : 1;
  }
  if (!complete || expected != left) {
    fail("'", file.path, "' has ", left, " bytes of values, but its header announces ",
         file.sizes[0], dimensions == 3 ? " images" : " labels", dimensions == 3 ? " of " : "",
         dimensions == 3 ? std::to_string(file.sizes[1]) + "x" + std::to_string(file.sizes[2]) : "",
         "; it is truncated or damaged, download it again");
  }
  file.values.assign(content.begin() + static_cast<std::ptrdiff_t>(header), content.end());
  return file;
}

struct IdxPart {
  std::uint32_t height, width;
  ImageSet set;
  std::string labels_path;
};

IdxPart read_idx_part(const std::string& directory, const std::string& name) {
  IdxFile images = read_idx(directory, name + "-images", 3);
  IdxFile labels = read_idx(directory, name + "-labels", 1);
  if (images.sizes[0] != labels.sizes[0]) {
    fail("'", images.path, "' has ", images.sizes[0], " images, '", labels.path, "' has ",
         labels.sizes[0], " labels; they do not belong together, download both again");
  }
  return {images.sizes[1],
          images.sizes[2],
          {std::move(images.values), std::move(labels.values)},
          labels.path};
}

// The largest label determines the number of classes, so a damaged byte would make hundreds of
// them. At least half of the classes must therefore have an example.
std::int64_t classes_of(const IdxPart& part) {
  const std::vector<std::uint8_t>& labels = part.set.labels;
  const auto largest = std::max_element(labels.begin(), labels.end());
  const std::size_t classes = std::size_t{*largest} + 1;
  const std::size_t different = std::set<std::uint8_t>(labels.begin(), labels.end()).size();
  if (classes > 2 * different) {
    fail("'", part.labels_path, "': the label at index ", largest - labels.begin(), " is ",
         static_cast<int>(*largest), ", but the file has only ", different,
         " different labels; expected labels from 0 to the number of classes minus 1");
  }
  return static_cast<std::int64_t>(classes);
}

void check_labels(const IdxPart& test, std::int64_t classes) {
  const std::vector<std::uint8_t>& labels = test.set.labels;
  const auto beyond = std::find_if(labels.begin(), labels.end(),
                                   [=](std::uint8_t label) { return label >= classes; });
  if (beyond == labels.end()) return;
  fail("'", test.labels_path, "': the label at index ", beyond - labels.begin(), " is ",
       static_cast<int>(*beyond), ", the training labels go only up to ", classes - 1,
       "; they do not belong together");
}

// ---- synthetic

// Every class has a pattern, and an image is its pattern plus noise three times as strong. It is a
// function of the index alone, so nothing is stored, whatever the size.
class SyntheticImages : public ImageData {
 public:
  explicit SyntheticImages(const Problem& problem) : ImageData(problem, false) {}

 private:
  static constexpr std::int64_t train_count = 10'000, test_count = 1'000;

  // One numbering covers both: test images follow the training images.
  static std::uint64_t number(Part part, std::int64_t example) {
    return static_cast<std::uint64_t>(part == Part::train ? example : train_count + example);
  }

  std::int64_t count(Part part) const override {
    return part == Part::train ? train_count : test_count;
  }

  std::int64_t label(Part part, std::int64_t example) const override {
    return random_below(stream_key(0, Stream::label), number(part, example),
                        static_cast<std::uint32_t>(problem().classes));
  }

  void write(Part part, std::int64_t example, const View&, float* out) const override {
    const std::uint64_t noise = random_at(stream_key(0, Stream::noise), number(part, example));
    const std::uint64_t pattern =
        random_at(stream_key(0, Stream::pattern), static_cast<std::uint64_t>(label(part, example)));
    // One draw serves four pixels, so that large images do not wait for their data.
    for (std::int64_t i = 0; i < pixels(); i += 4) {
      std::uint64_t noise_bits = random_at(noise, static_cast<std::uint64_t>(i));
      std::uint64_t pattern_bits = random_at(pattern, static_cast<std::uint64_t>(i));
      for (std::int64_t j = i; j < std::min(i + 4, pixels()); ++j) {
        out[j] = spread(noise_bits) + spread(pattern_bits) / 3;
        noise_bits >>= 16;
        pattern_bits >>= 16;
      }
    }
  }

  // Uniform with mean 0 and variance 0.9, so that noise and pattern together have variance 1.
  static float spread(std::uint64_t bits) {
    constexpr float half_width = 1.643168f;  // sqrt(3 * 0.9)
    return (static_cast<float>(bits & 0xffff) - 32767.5f) * (half_width / 32767.5f);
  }
};

Problem parse_synthetic(const std::string& argument) {
  Problem problem{Domain::images, 3, 32, 32, 10};
  if (argument.empty()) return problem;
  const std::array<std::pair<std::int64_t*, char>, 4> parts = {{{&problem.channels, 'x'},
                                                                {&problem.height, 'x'},
                                                                {&problem.width, ':'},
                                                                {&problem.classes, '\0'}}};
  const char* at = argument.data();
  const char* const end = at + argument.size();
  for (const auto& [value, separator] : parts) {
    const auto [next, error] = std::from_chars(at, end, *value);
    const bool ended = separator == '\0' ? next == end : next != end && *next == separator;
    if (error != std::errc{} || !ended || *value < 1 || *value > 100'000) {
      fail("data 'synthetic:", argument, "': expected CxHxW:CLASSES, four numbers from 1 to ",
           "100000; write for example synthetic:3x224x224:1000");
    }
    at = separator == '\0' ? next : next + 1;
  }
  return problem;
}

}  // namespace

std::unique_ptr<Data> open_digits() {
  const ImageSet all = read_digits(digits_path());
  const std::vector<std::size_t> order = digit_order();
  const auto rows = std::span(order);
  const std::size_t tests = digit_images / 5;
  return std::make_unique<StoredImages>(Problem{Domain::images, 1, 8, 8, 10},
                                        take(all, rows.subspan(tests), digit_pixels),
                                        take(all, rows.first(tests), digit_pixels), false);
}

std::unique_ptr<Data> open_cifar10(const std::string& directory) {
  const std::string base = existing_directory(directory, cifar_advice);
  // The archive contains its own folder.
  const std::string inner = base + "/cifar-10-batches-bin";
  const std::string& place = fs::is_directory(inner) ? inner : base;
  ImageSet train, test;
  for (const char* number : {"1", "2", "3", "4", "5"}) {
    read_cifar(place + "/data_batch_" + number + ".bin", train);
  }
  read_cifar(place + "/test_batch.bin", test);
  return std::make_unique<StoredImages>(Problem{Domain::images, 3, 32, 32, 10}, std::move(train),
                                        std::move(test), true);
}

std::unique_ptr<Data> open_idx(const std::string& directory) {
  existing_directory(directory, "put the four files of MNIST or Fashion-MNIST there");
  IdxPart train = read_idx_part(directory, "train");
  IdxPart test = read_idx_part(directory, "t10k");
  if (train.height != test.height || train.width != test.width) {
    fail("'", directory, "': training images are ", train.height, "x", train.width,
         ", test images ", test.height, "x", test.width, "; they do not belong together");
  }
  const std::int64_t classes = classes_of(train);
  check_labels(test, classes);
  return std::make_unique<StoredImages>(
      Problem{Domain::images, 1, train.height, train.width, classes}, std::move(train.set),
      std::move(test.set), false);
}

std::unique_ptr<Data> open_synthetic(const std::string& argument) {
  return std::make_unique<SyntheticImages>(parse_synthetic(argument));
}

}  // namespace thinwire::train
