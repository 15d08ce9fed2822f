// Data from files, and models that start from files and are written to them.
#include <doctest/doctest.h>
#include <gradual/data/digits.h>

#include <fstream>

#include "comparison.h"

namespace gradual::test {

TEST_CASE("data come from arrays of NumPy and from safetensors") {
  const Folder folder("arrays");
  fs::create_directories(folder.path);
  const std::string x = (folder.path / "x.npy").string();
  const std::string y = (folder.path / "y.npy").string();
  const std::string both = (folder.path / "both.safetensors").string();
  const data::Dataset digits = data::digits();
  save_npy(x, digits.inputs);
  save_npy(y, digits.targets.to(DType::i32));
  StateDict state;
  state.set("inputs", digits.inputs);
  state.set("targets", digits.targets);
  save_safetensors(both, state);
  for (const std::string& spec : {"npy:" + x + "," + y, "safetensors:" + both}) {
    const lab::LabData data = lab::data_for(spec);
    // four fifths of 1797
    const data::Split split = data.load(3);
    const data::Split want = data::split(digits, 1437, 3);
    CHECK(data.name == spec);
    CHECK(split.train.classes == 10);
    CHECK(split.train.size() == 1437);
    CHECK(split.test.size() == 360);
    CHECK(split.train.inputs.to_vector<float>() == want.train.inputs.to_vector<float>());
    CHECK(split.test.targets.to_vector<std::int64_t>() == want.test.targets.to_vector<std::int64_t>());
    CHECK(data.load(4).test.targets.to_vector<std::int64_t>() != want.test.targets.to_vector<std::int64_t>());
  }
  const auto allowed = "; allowed are inputs [N, ..] and targets [N, ..], none of them empty";
  CHECK(message([&] { lab::data_for("npy:" + y + "," + y); }) ==
        "npy:" + y + "," + y + ": inputs [1797] and targets i32 [1797]" + allowed);
  const lab::LabData numbers = lab::data_for("npy:" + x + "," + x);
  CHECK(numbers.loss == "mse");
  CHECK(numbers.load(0).train.classes == 0);
  CHECK(message([&] { lab::data_for("npy:" + x); }).starts_with("no data 'npy:"));
  save_npy(y, digits.targets.narrow(0, 0, 5));
  CHECK(message([&] { lab::data_for("npy:" + x + "," + y); }).find("1797") != std::string::npos);
}

TEST_CASE("cifar10 trains on augmented batches, the same ones after a resume and for each recipe") {
  const Folder folder("cifar10");
  fs::create_directories(folder.path);
  for (const char* name : {"data_batch_1.bin", "test_batch.bin"}) {
    std::string bytes;
    for (int i = 0; i < 40; ++i) {
      bytes += static_cast<char>(i % 10);
      for (int p = 0; p < 3072; ++p) bytes += static_cast<char>((i % 10) * 20 + (p * 7 + i) % 50);
    }
    std::ofstream(folder.path / name, std::ios::binary) << bytes;
  }
  lab::LabData data = lab::data_for("cifar10:" + folder.path.string());
  CHECK(data.name == "cifar10:" + folder.path.string());
  const data::Split split = data.load(0);
  CHECK(split.train.size() == 40);
  CHECK(split.test.size() == 40);
  int augmented = 0;
  const lab::MakeModel model = [] { return lab::make_mlp(3072, 10); };
  data.augment = [&augmented, own = data.augment](const data::Batch& b) {
    ++augmented;
    return own(b);
  };
  const lab::Options options{.epochs = 2, .batch = 10};
  const auto both = lab::compare(model, data, recipes({"fp32", "amp-bf16"}), "", options);
  CHECK(augmented >= 16);
  CHECK(both[0].curve.loss.size() == 8);
  CHECK(std::abs(both[0].curve.loss[3] - both[1].curve.loss[3]) < 0.05);  // of the same batches
  CHECK(lab::compare(model, data, recipes({"fp32"}), "", options)[0].curve.loss == both[0].curve.loss);
  data.augment = {};
  CHECK(lab::compare(model, data, recipes({"fp32"}), "", options)[0].curve.loss != both[0].curve.loss);
}

TEST_CASE("a program adds models to those of the lab by name") {
  lab::add_model("tiny", [](const data::Dataset& d) -> lab::MakeModel {
    return
        [s = lab::image_sizes("tiny", d), classes = d.classes] { return lab::make_mlp(s[1] * s[2] * s[3], classes); };
  });
  CHECK(lab::model_for("tiny", small_digits().train)()->parameters().size() == 6);
  CHECK(message([] { lab::model_for("vgg", small_digits().train); }) ==
        "no model 'vgg'; allowed are mlp, cnn, gpt, moe-gpt, autoencoder, tiny and FILE.pt2");
  data::Dataset rows = small_digits().train;
  rows.inputs = rows.inputs.reshape({rows.size(), -1});
  CHECK(message([&] {
          lab::model_for("tiny", rows);
        }).starts_with("model tiny reads images [N, C, H, W], the data are ["));
}

TEST_CASE("the parameters of every run are saved in f32, and a model that loads them has its accuracy") {
  const Folder folder("save");
  const lab::Options options{.epochs = 1, .save = folder.path.string()};
  const data::Split digits = small_digits();
  const std::vector<lab::Result> results =
      lab::compare(mlp, digits, recipes({"fp32", "fp16-master", "fp16-static:1024"}), "", options);
  CHECK(fs::exists(folder.path / "fp16-static%3A1024-seed0.safetensors"));
  const auto model = mlp();
  const StateDict masters = load_safetensors((folder.path / "fp16-master-seed0.safetensors").string()).tensors;
  for (const auto& [name, value] : masters) CHECK(std::get<Tensor>(value).dtype() == DType::f32);
  model->load_state_dict(load_safetensors((folder.path / "fp32-seed0.safetensors").string()).tensors);
  const Tensor right = eq(argmax((*model)(digits.test.inputs), 1), digits.test.targets).to(DType::f64);
  CHECK(right.mean().item() == doctest::Approx(results[0].test_accuracy).epsilon(1e-12));
}

TEST_CASE("a label that no model has an output for is named; so are images with the channels last") {
  const Folder folder("labels");
  fs::create_directories(folder.path);
  const std::string path = (folder.path / "labels.safetensors").string();
  for (const std::int64_t label : {std::int64_t{1} << 40, std::int64_t{-1}}) {
    StateDict state;
    state.set("inputs", zeros({3, 4}));
    state.set("targets", from_data(std::vector<std::int64_t>{0, label, 1}, {3}));
    save_safetensors(path, state);
    const std::string expected = "target 1 is " + std::to_string(label) + "; allowed are class numbers from 0 to ";
    CHECK(message([&] { lab::data_for("safetensors:" + path); }).find(expected) != std::string::npos);
  }
  const data::Dataset last{.inputs = zeros({2, 28, 28, 1}), .targets = zeros({2}, {.dtype = DType::i64}), .classes = 2};
  CHECK(message([&] { lab::model_for("cnn", last); }) ==
        "model cnn reads images [N, C, H, W] of at least 4 x 4, the data are [2, 28, 28, 1]; images with the channels "
        "last need x.permute({0, 3, 1, 2})");
}

}  // namespace gradual::test
